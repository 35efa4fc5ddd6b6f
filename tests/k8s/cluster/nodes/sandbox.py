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
from collections.abc import Sequence
from pathlib import Path

import psutil

from cluster.nodes.network import DIE_WITH_PARENT, SLEEP, Network, start_holder
from cluster.objects import Manifest

_PROGRAM = Path(__file__).with_name("container_init.py")
_NAMESPACES = ("--net", "--uts", "--ipc")


class Sandbox:
    """Network, UTS and IPC namespaces of a pod."""

    def __init__(self, network: Network, hostname: str) -> None:
        script = f'hostname "$0" && ip link set lo up && echo && {SLEEP}'
        self._network = network
        self._holder = start_holder([*DIE_WITH_PARENT, "unshare", *_NAMESPACES, "sh", "-c", script, hostname])
        self.veth, self.address = network.attach(self._holder.pid)

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
        argv = [*DIE_WITH_PARENT, *sandbox.prefix, sys.executable, "-I", "-S"]
        argv += [str(_PROGRAM), str(path), str(writer)]
        try:
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=[writer],
                    env={"PATH": os.environ["PATH"]},
                    start_new_session=True,
                )
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
