"""Sandbox and containers of a pod: namespaces of the pod, and of each container.

A container's command is process 1 of its process namespace, as under a container runtime: signals that it
does not handle are ignored, SIGKILL ends it and all of its processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from cluster.nodes.network import DIE_WITH_PARENT, SLEEP, Network, start_holder
from cluster.objects import Manifest

PROGRAM = Path(__file__).with_name("container_init.py")
_NAMESPACES = ("--net", "--uts", "--ipc")


class ContainerProcess(Protocol):
    """What is needed of subprocess.Popen."""

    @property
    def pid(self) -> int:
        """The process that runs container_init.py."""

    def poll(self) -> int | None:
        """Return the exit code if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""

    def kill(self) -> None:
        """Send SIGKILL."""


# Pid of a process in the pod's namespaces, spec and its file, descriptors of output and report -> the
# container; None where only a new process can be what the spec says.
ForkContainer = Callable[[int, Manifest, Path, int, int], ContainerProcess | None]
# The tests set it: most of the time of an agent's start is the import of torch.
fork_container: ForkContainer | None = None


class Sandbox:
    """Network, UTS and IPC namespaces of a pod."""

    def __init__(self, network: Network, hostname: str) -> None:
        script = f'hostname "$0" && ip link set lo up && echo && {SLEEP}'
        self._network = network
        self._holder = start_holder([*DIE_WITH_PARENT, "unshare", *_NAMESPACES, "sh", "-c", script, hostname])
        self.veth, self.address = network.attach(self._holder.pid)

    @property
    def pid(self) -> int:
        """A process in these namespaces."""
        return self._holder.pid

    @property
    def prefix(self) -> Sequence[str]:
        """Command prefix that runs a command in these namespaces."""
        return ("nsenter", "--target", str(self._holder.pid), *_NAMESPACES)

    def disconnect(self) -> None:
        """See Network.disconnect."""
        self._network.disconnect(self.veth)

    def reconnect(self) -> None:
        """See Network.reconnect."""
        self._network.reconnect(self.veth)

    def stop(self) -> None:
        """End the namespaces, and the veth pair with them."""
        self._holder.kill()
        self._holder.wait()


class Container:
    """Processes of a container.

    Attributes:
        log: its stdout and stderr.
    """

    def __init__(self, sandbox: Sandbox, spec: Manifest, log: Path) -> None:
        self.log = log
        path = log.with_suffix(".spec.json")
        path.write_text(json.dumps(spec))
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._report_text = ""
        try:
            with log.open("ab") as out:
                forked = fork_container and fork_container(sandbox.pid, spec, path, out.fileno(), writer)
                self._process = forked or _start(sandbox, path, out.fileno(), writer)
        finally:
            os.close(writer)

    @property
    def report(self) -> str:
        """Report of container_init.py so far: `started`, or an error."""
        try:
            self._report_text += os.read(self._reader, 65536).decode() if self._reader >= 0 else ""
        except BlockingIOError:
            pass
        return self._report_text

    def exit_code(self) -> int | None:
        """Exit code as a container runtime reports it: 128+n for a signal; None while running."""
        code = self._process.poll()
        if code is None:
            return None
        if self._reader >= 0:
            _ = self.report
            os.close(self._reader)
            self._reader = -1
        return code if code >= 0 else 128 - code

    @property
    def pid(self) -> int | None:
        """Host pid of the container's process 1; None when it does not exist."""
        try:
            children = psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return None
        return children[0].pid if children else None

    def send(self, number: int) -> None:
        """Send a signal to process 1."""
        if number == signal.SIGKILL and self.pid is None:
            self._process.kill()
        elif (pid := self.pid) is not None:
            os.kill(pid, number)

    def stop(self) -> None:
        """Kill it and wait."""
        if self._process.poll() is None:
            self.send(signal.SIGKILL)
            self._process.wait(20)
        self.exit_code()


def _start(sandbox: Sandbox, spec: Path, out: int, report: int) -> ContainerProcess:
    argv = [*DIE_WITH_PARENT, *sandbox.prefix, sys.executable, "-I", "-S"]
    return subprocess.Popen(
        [*argv, str(PROGRAM), str(spec), str(report)],
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        pass_fds=[report],
        env={"PATH": os.environ["PATH"]},
        start_new_session=True,
    )
