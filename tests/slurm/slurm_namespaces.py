"""A Slurm cluster whose nodes are hosts of their own: network, hostname, mounts and processes in namespaces.

Each node has a cable (a veth pair) to a bridge in the controller's namespace; the host's own network is
not touched. The namespaces have no names: they end with the processes that hold them open.
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

from dist_train.testing.processes import is_alive

BINARIES = ("ip", "nsenter", "unshare", "mount")
_CONTROLLER = "10.77.0.1"
_PORT = 6817
# The first process of a node: a shell that waits also reaps orphans.
_INIT = ("bash", "-c", "sleep infinity & wait")
# Entering a mount namespace leads to its root; the command shall run in the caller's directory.
_ENTER = 'where=$1; shift; exec nsenter --target="$where" --net --mount --wdns="$(pwd)" -- "$@"'


@dataclass(frozen=True)
class _Host:
    """A namespace: the process that holds it open, and the words that lead into it."""

    holder: psutil.Process
    prefix: tuple[str, ...]

    def run(self, *argv: str) -> None:
        """Run a command in there."""
        words = [*self.prefix, *argv]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
        if done.returncode:
            raise ClusterError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")


class NamespaceCluster(SlurmCluster):
    """As SlurmCluster, with nodes n1, n2, ... at 10.77.0.11, 10.77.0.12, ...

    What talks to the cluster must run inside: `run` and its kin do, anything else needs `prefix` before it.
    """

    _controller: _Host | None = None

    def _lay_out(self) -> Layout:
        host = short_hostname()
        count = self.settings.nodes
        nodes = [Node(f"n{i}", f"n{i}", f"10.77.0.{10 + i}", _PORT + 1) for i in range(1, count + 1)]
        return Layout(self.folder, Node(host, host, _CONTROLLER, _PORT), nodes, dbd_port=_PORT + 2)

    def _open(self) -> None:
        self._hosts: dict[str, _Host] = {}
        self.folder.joinpath("log").mkdir()
        hosts = [("localhost", "127.0.0.1"), (self.layout.controller.hostname, _CONTROLLER)]
        hosts += [(node.name, node.address) for node in self.layout.nodes]
        lines = [f"{address} {name}\n" for name, address in hosts]
        self._hosts_file.write_text("".join(lines))
        self._controller = controller = self._hold("controller", "--net", "--mount")
        controller.run("ip", "link", "add", "cluster", "type", "bridge")
        controller.run("ip", "address", "add", f"{_CONTROLLER}/24", "dev", "cluster")
        controller.run("ip", "link", "set", "cluster", "up")
        for name in self.names:
            self._open_node(name)

    @property
    def _hosts_file(self) -> Path:
        return self.folder / "hosts"

    def _hold(self, name: str, *kinds: str) -> _Host:
        """New namespaces of these kinds, with the loopback up and our names in /etc/hosts."""
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

    def _open_node(self, name: str) -> None:
        old = self._hosts.get(name)
        if old is not None and is_alive(old.holder):
            return
        kinds = ("--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        host = self._hosts[name] = self._hold(name, *kinds)
        host.run("hostname", name)
        self._plug_in(name, host)

    def _plug_in(self, name: str, host: _Host) -> None:
        """A cable from the bridge to the node; the old one went with the old node."""
        assert self._controller is not None
        address = next(node.address for node in self.layout.nodes if node.name == name)
        # Started again, a machine keeps its hardware address: the others still have it in their tables.
        hardware = "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))
        peer = ("peer", "name", "eth0", "address", hardware, "netns", str(host.holder.pid))
        self._controller.run("ip", "link", "add", f"to-{name}", "type", "veth", *peer)
        self._controller.run("ip", "link", "set", f"to-{name}", "master", "cluster", "up")
        host.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        host.run("ip", "link", "set", "eth0", "up")

    @property
    def prefix(self) -> Sequence[str]:
        """Words before a command that shall talk to the cluster, or listen to it; it keeps its directory."""
        if self._controller is None:
            return ()
        return ("sh", "-c", _ENTER, "enter", str(self._controller.holder.pid))

    def _node_prefix(self, name: str) -> Sequence[str]:
        return self._hosts[name].prefix

    def node_prefix(self, name: str) -> Sequence[str]:
        """Words before a command that shall run on a node."""
        return self._node_prefix(name)

    def processes_of(self, name: str) -> list[psutil.Process]:
        """Living processes of a node: everything in its process namespace."""
        holder = self._hosts[name].holder
        try:
            wanted = os.readlink(f"/proc/{holder.pid}/ns/pid") if is_alive(holder) else ""
        except OSError:
            wanted = ""
        return [process for process in psutil.process_iter() if wanted and _namespace(process) == wanted]

    def kill_node(self, name: str) -> None:
        """The node is dead at once: the kernel kills what is in its process namespace, with the first."""
        end_all(lambda: [p for p in [self._hosts[name].holder] if is_alive(p)])

    def cut_cable(self, name: str) -> None:
        """The node hears and says nothing more, and lives on."""
        self._cable(name, "down")

    def heal(self, name: str) -> None:
        """Plug the cable in again."""
        self._cable(name, "up")

    def _cable(self, name: str, state: str) -> None:
        assert self._controller is not None
        self._controller.run("ip", "link", "set", f"to-{name}", state)

    def hide(self, name: str, path: Path) -> None:
        """An empty folder lies over `path` on this node, for what runs there and what is started later."""
        self._hosts[name].run("mount", "-t", "tmpfs", "hidden", str(path))

    def unhide(self, name: str, path: Path) -> None:
        """`path` is shared again; also when something still has it open."""
        self._hosts[name].run("umount", "--lazy", str(path))

    def clean(self) -> None:
        """As after the start: cables plugged in, nothing hidden, daemons running, no job, all nodes idle."""
        for name, host in self._hosts.items():
            if is_alive(host.holder):
                self.heal(name)
                self._show_all(host)
        super().clean()

    def _show_all(self, host: _Host) -> None:
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
    """What the namespaces need and is not installed."""
    return [name for name in BINARIES if shutil.which(name) is None]
