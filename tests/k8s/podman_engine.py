"""podman in namespaces of its own: mounts, processes, network. What it starts and writes ends with them.

Its storage lies in memory that only those mounts see, its network is a bridge that leads nowhere; the
machine's own containers, images and networks are not touched. Only control groups are the machine's: `stop`
removes them. Needs root.

Small virtual machines need three things: limits that are not above root's own (it may lack
CAP_SYS_RESOURCE), runc where control groups are of both versions, nsenter and not `ip netns exec`.
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

import podman_dns
import psutil
from k8s_network import WITH_US, held

BINARIES = ("podman", "runc", "conmon", "ip", "nsenter", "unshare", "setpriv", "bash", "/usr/lib/cni/bridge")
NETWORK, GATEWAY, _PREFIX = "pods", "10.244.0.1", "10.244.0."
_CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--mount", "--pid", "--net")
# bash waits, so it also reaps what lost its parent: it is the first process there.
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
        folder: for its settings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.zone = folder / "zone"
        self.cgroup = f"dist-train-test-{os.getpid()}"
        self._holder: subprocess.Popen[bytes] | None = None
        self._addresses = 1

    def start(self) -> None:
        """Namespaces, bridge and name server; no image yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        networks = self.folder / "networks"
        networks.mkdir()
        (networks / "pods.conflist").write_text(json.dumps(_network()))
        (self.folder / "containers.conf").write_text(_settings(networks))
        self.zone.touch()
        words = [*WITH_US, "unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
        self._holder = held([*words, "bash", "-c", _INIT, GATEWAY])
        (self._first,) = psutil.Process(self._holder.pid).children()
        server = [sys.executable, "-I", podman_dns.__file__, str(self.zone)]
        self._names = held([*WITH_US, *self.prefix, *server])

    def stop(self) -> None:
        """The kernel kills what is in there, with the first process."""
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
    def words(self) -> Sequence[str]:
        """For `podman run`: where its control groups are, for `stop` to find."""
        return (f"--cgroup-parent=/{self.cgroup}",)

    @property
    def prefix(self) -> Sequence[str]:
        """Words before a command that shall run in there."""
        return ("nsenter", "--target", str(self._first.pid), *_NAMESPACES)

    def run(self, *argv: str, timeout_s: float = 60) -> str:
        """A command in there: its stdout; EngineError with its words when it fails."""
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

    def podman(self, *words: str, timeout_s: float = 60) -> str:
        """See `run`."""
        return self.run("podman", *words, timeout_s=timeout_s)

    def inspect(self, name: str) -> Any:
        """A container, or an image."""
        (found,) = json.loads(self.podman("inspect", name))
        return found

    def new_address(self) -> str:
        """One that nobody had before."""
        self._addresses += 1
        return f"{_PREFIX}{self._addresses}"

    def process(self, name: str) -> str:
        """/proc/…/status of a running container's first process, mounts behind it."""
        pid = self.inspect(name)["State"]["Pid"]
        return self.run("cat", f"/proc/{pid}/status", f"/proc/{pid}/mounts")


def _network() -> dict[str, Any]:
    """A CNI network: the bridge that is there, no masquerading, no way out."""
    place = {"type": "host-local", "ranges": [[{"subnet": f"{_PREFIX}0/24", "gateway": GATEWAY}]]}
    bridge = {"type": "bridge", "bridge": NETWORK, "isGateway": False, "ipMasq": False, "ipam": place}
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
