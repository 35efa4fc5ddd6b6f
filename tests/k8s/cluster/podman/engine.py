"""Engine: podman in its own mount, pid and network namespaces, which end with it.

Its storage is a tmpfs in that mount namespace, its network an isolated bridge; the machine's containers,
images and networks are not touched. Only cgroups are the machine's: `stop` removes them. Needs root.

Small virtual machines need three things: rlimits no higher than root's own (it may lack CAP_SYS_RESOURCE),
runc where both cgroup versions are mounted, and nsenter instead of `ip netns exec`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from cluster.nodes.network import DIE_WITH_PARENT, start_holder
from cluster.podman import name_server

BINARIES = ("podman", "runc", "conmon", "ip", "nsenter", "unshare", "setpriv", "bash", "/usr/lib/cni/bridge")
NETWORK, GATEWAY, _PREFIX = "pods", "10.244.0.1", "10.244.0."
_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--mount", "--pid", "--net")
# bash is process 1 there; it waits, so it also reaps orphans.
_INIT = """
set -e
for place in /run /var/lib /dev/shm; do mount -t tmpfs podman "$place"; done
ip link set lo up
ip link add pods type bridge
ip address add "$0/24" dev pods
ip link set pods up
echo made
sleep infinity & wait
"""


class EngineError(RuntimeError):
    """A podman command failed."""


class Engine:
    """podman, from `start` to `stop`.

    Args:
        folder: for its configuration.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zone = folder / "zone"
        self.cgroup = f"dist-train-test-{os.getpid()}"
        self._holder: subprocess.Popen[bytes] | None = None
        self._addresses = 1

    def start(self) -> None:
        """Create namespaces, bridge and name server; no image yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        networks = self.folder / "networks"
        networks.mkdir()
        (networks / "pods.conflist").write_text(json.dumps(_network()))
        (self.folder / "containers.conf").write_text(_settings(networks))
        self.zone.touch()
        argv = [*DIE_WITH_PARENT, "unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        self._holder = start_holder([*argv, "bash", "-c", _INIT, GATEWAY])
        (self._first,) = psutil.Process(self._holder.pid).children()
        server = [sys.executable, "-I", name_server.__file__, str(self.zone)]
        self._names = start_holder([*DIE_WITH_PARENT, *self.prefix, *server])

    def stop(self) -> None:
        """Kill process 1, and with it everything in the namespaces; remove the cgroups."""
        if self._holder is not None:
            self._first.kill()
            self._names.wait(20)
            self._holder.wait(20)
            self._holder = None
            self._remove_cgroups()

    def _remove_cgroups(self) -> None:
        for top in _CGROUPS.glob(f"*/{self.cgroup}"):
            for path in sorted([top, *top.rglob("*/")], reverse=True):
                path.rmdir()

    @property
    def run_args(self) -> Sequence[str]:
        """Arguments of `podman run`: the parent cgroup, which `stop` removes."""
        return (f"--cgroup-parent=/{self.cgroup}",)

    @property
    def prefix(self) -> Sequence[str]:
        """Command prefix that runs a command in the namespaces."""
        return ("nsenter", "--target", str(self._first.pid), *_NAMESPACES)

    def run(self, *argv: str, timeout_s: float = 60) -> str:
        """Run a command in the namespaces; returns stdout, raises EngineError."""
        environ = {"PATH": os.environ["PATH"], "CONTAINERS_CONF": str(self.folder / "containers.conf")}
        done = subprocess.run(
            [*self.prefix, *argv],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environ,
        )
        if done.returncode:
            raise EngineError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def podman(self, *args: str, timeout_s: float = 60) -> str:
        """Run a podman command, see `run`."""
        return self.run("podman", *args, timeout_s=timeout_s)

    def inspect(self, name: str) -> Any:
        """`podman inspect` of a container or an image."""
        (found,) = json.loads(self.podman("inspect", name))
        return found

    def new_address(self) -> str:
        """Return an unused address."""
        self._addresses += 1
        return f"{_PREFIX}{self._addresses}"

    def process(self, name: str) -> str:
        """/proc/…/status and then /proc/…/mounts of a running container's first process."""
        pid = self.inspect(name)["State"]["Pid"]
        return self.run("cat", f"/proc/{pid}/status", f"/proc/{pid}/mounts")


def _network() -> dict[str, Any]:
    """CNI network: the existing bridge, no masquerading, no gateway."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": f"{_PREFIX}0/24", "gateway": GATEWAY}]]}
    bridge = {"type": "bridge", "bridge": NETWORK, "isGateway": False, "ipMasq": False, "ipam": ipam}
    return {"cniVersion": "0.4.0", "name": NETWORK, "plugins": [bridge]}


def _settings(networks: Path) -> str:
    files, processes = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_NPROC)
    limits = [f"nofile={files[0]}:{files[1]}", f"nproc={processes[0]}:{processes[1]}"]
    return f"""
[containers]
default_ulimits = {json.dumps(limits)}
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
runtime = "runc"
[network]
network_backend = "cni"
network_config_dir = {json.dumps(str(networks))}
default_network = "{NETWORK}"
"""
