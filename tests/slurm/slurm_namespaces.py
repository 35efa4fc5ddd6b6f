"""A Slurm cluster whose nodes have their own network, hostname, mounts and processes, by namespaces.

Each node has a veth pair to a bridge in the controller's namespace; the host's network is not changed. The
namespaces have no names: they end with the processes that keep them open.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from slurm_cluster import SlurmCluster
from slurm_config import Layout, Node, short_hostname
from slurm_daemons import ClusterError, detach, end_all, until

from dist_train.testing.process_tree import is_alive

BINARIES = ("ip", "nsenter", "unshare", "mount")
_CONTROLLER = "10.77.0.1"
_PORT = 6817
# Process 1 of a node: a shell that waits, so it also reaps orphans.
_INIT = ("bash", "-c", "sleep infinity & wait")
# Entering a mount namespace changes to its root; --wdns restores the caller's directory.
_ENTER = 'pid=$1; shift; exec nsenter --target="$pid" --net --mount --wdns="$(pwd)" -- "$@"'


@dataclass(frozen=True)
class _Host:
    """Namespaces of a node: the process that keeps them open, and the prefix that enters them."""

    holder: psutil.Process
    prefix: tuple[str, ...]

    def run(self, *argv: str) -> None:
        """Run a command in the namespaces."""
        done = subprocess.run(
            [*self.prefix, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10
        )
        if done.returncode:
            raise ClusterError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")


class NamespaceCluster(SlurmCluster):
    """As SlurmCluster, with nodes n1, n2, ... at 10.77.0.11, 10.77.0.12, ...

    Clients of the cluster must run in its namespaces: methods such as `run` do, other commands need `prefix`.
    """

    _controller: _Host | None = None

    def _new_layout(self) -> Layout:
        host = short_hostname()
        count = self.settings.nodes
        nodes = [Node(f"n{i}", f"n{i}", f"10.77.0.{10 + i}", _PORT + 1) for i in range(1, count + 1)]
        return Layout(self.folder, Node(host, host, _CONTROLLER, _PORT), nodes, dbd_port=_PORT + 2)

    def _create_network(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self.folder.joinpath("log").mkdir()
        hosts = [("localhost", "127.0.0.1"), (self.layout.controller.hostname, _CONTROLLER)]
        hosts += [(node.name, node.address) for node in self.layout.nodes]
        lines = [f"{address} {name}\n" for name, address in hosts]
        self._hosts_file.write_text("".join(lines))
        self._controller = controller = self._new_host("controller", "--net", "--mount")
        controller.run("ip", "link", "add", "cluster", "type", "bridge")
        controller.run("ip", "address", "add", f"{_CONTROLLER}/24", "dev", "cluster")
        controller.run("ip", "link", "set", "cluster", "up")
        for name in self.names:
            self._create_node(name)

    @property
    def _hosts_file(self) -> Path:
        return self.folder / "hosts"

    def _new_host(self, name: str, *kinds: str) -> _Host:
        """Create namespaces of these kinds, with the loopback up and the nodes in /etc/hosts."""
        log = self.folder / "log" / f"namespace-{name}.log"
        holder = detach(["unshare", *kinds, *_INIT], self._environ_of_daemons(name), log)
        if "--pid" in kinds:
            until(lambda: len(holder.children()) == 1, f"namespace of {name} is made", 10)
            holder = holder.children()[0]
        until(lambda: holder.name() == "bash", f"namespace of {name} is there", 10)
        flags = [f"--{kind}" for kind in ("net", "mount", "uts", "pid") if f"--{kind}" in kinds]
        host = _Host(holder, ("nsenter", "-t", str(holder.pid), *flags))
        host.run("ip", "link", "set", "lo", "up")
        host.run("mount", "--bind", str(self._hosts_file), "/etc/hosts")
        return host

    def _create_node(self, name: str) -> None:
        old = self._hosts.get(name)
        if old is not None and is_alive(old.holder):
            return
        kinds = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        host = self._hosts[name] = self._new_host(name, *kinds)
        host.run("hostname", name)
        self._connect(name, host)

    def _connect(self, name: str, host: _Host) -> None:
        """Create a veth pair from the bridge to the node; the old pair ended with the old node."""
        assert self._controller is not None
        address = next(node.address for node in self.layout.nodes if node.name == name)
        # A restarted machine keeps its hardware address: the others still have it in their ARP tables.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        peer = ("peer", "name", "eth0", "address", hardware, "netns", str(host.holder.pid))
        self._controller.run("ip", "link", "add", f"to-{name}", "type", "veth", *peer)
        self._controller.run("ip", "link", "set", f"to-{name}", "master", "cluster", "up")
        host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")

    @property
    def prefix(self) -> Sequence[str]:
        """Command prefix for clients of the cluster; it keeps the working directory."""
        if self._controller is None:
            return ()
        return ("sh", "-c", _ENTER, "enter", str(self._controller.holder.pid))

    def _node_prefix(self, name: str) -> Sequence[str]:
        return self._hosts[name].prefix

    def node_prefix(self, name: str) -> Sequence[str]:
        """Command prefix that runs a command on a node."""
        return self._node_prefix(name)

    def processes_of(self, name: str) -> list[psutil.Process]:
        """Living processes of a node: all of its pid namespace."""
        holder = self._hosts[name].holder
        try:
            wanted = os.readlink(f"/proc/{holder.pid}/ns/pid") if is_alive(holder) else ""
        except OSError:
            wanted = ""
        return [process for process in psutil.process_iter() if wanted and _namespace(process) == wanted]

    def kill_node(self, name: str) -> None:
        """Crash a node: kill process 1 of its pid namespace, and with it all others."""
        end_all(lambda: [p for p in [self._hosts[name].holder] if is_alive(p)])

    def disconnect(self, name: str) -> None:
        """Disconnect a node's network; its processes keep running."""
        self._set_link(name, "down")

    def reconnect(self, name: str) -> None:
        """Reconnect a node's network."""
        self._set_link(name, "up")

    def _set_link(self, name: str, state: str) -> None:
        assert self._controller is not None
        self._controller.run("ip", "link", "set", f"to-{name}", state)

    def hide(self, name: str, path: Path) -> None:
        """Mount an empty tmpfs over `path` on a node, for running and later processes."""
        self._hosts[name].run("mount", "-t", "tmpfs", "hidden", str(path))

    def unhide(self, name: str, path: Path) -> None:
        """Unmount it again, also while files in it are open."""
        self._hosts[name].run("umount", "--lazy", str(path))

    def clean(self) -> None:
        """Restore the state after the start: network, mounts, daemons, no jobs, all nodes idle."""
        for name, host in self._hosts.items():
            if is_alive(host.holder):
                self.reconnect(name)
                self._unhide_all(host)
        super().clean()

    def _unhide_all(self, host: _Host) -> None:
        mounts = Path(f"/proc/{host.holder.pid}/mounts").read_text(encoding="utf-8").splitlines()
        for line in mounts:
            source, path = line.split()[:2]
            if source == "hidden":
                host.run("umount", "--lazy", path.replace("\\040", " "))


def _namespace(process: psutil.Process) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/ns/pid") if is_alive(process) else ""
    except OSError:
        return ""


def missing_binaries() -> list[str]:
    """Programs that the namespaces need and that are not installed."""
    return [name for name in BINARIES if shutil.which(name) is None]
