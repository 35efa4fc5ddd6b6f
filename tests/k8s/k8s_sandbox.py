"""A pod's processes: a holder of network and host name; containers with pids and mounts of their own.

A container's command is process 1 of its process namespace, as under a container runtime: signals that it
does not handle do nothing, SIGKILL ends it and all that it started.
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
from k8s_network import SLEEP, WITH_US, Network, held
from k8s_objects import Manifest

_PROGRAM = Path(__file__).with_name("k8s_container.py")
_NAMESPACES = ("--net", "--uts", "--ipc")


class Sandbox:
    """Network, host name and shared memory of a pod."""

    def __init__(self, network: Network, hostname: str) -> None:
        script = f'hostname "$0" && ip link set lo up && echo && {SLEEP}'
        self._network = network
        self._holder = held([*WITH_US, "unshare", *_NAMESPACES, "sh", "-c", script, hostname])
        self.cable, self.address = network.attach(self._holder.pid)

    @property
    def prefix(self) -> Sequence[str]:
        """Words before a command that shall run in the pod's network."""
        return ("nsenter", "--target", str(self._holder.pid), *_NAMESPACES)

    def cut(self) -> None:
        """See Network.cut."""
        self._network.cut(self.cable)

    def heal(self) -> None:
        """See Network.heal."""
        self._network.heal(self.cable)

    def stop(self) -> None:
        """The cable goes with it."""
        self._holder.kill()
        self._holder.wait()


class Container:
    """A container's processes.

    Attributes:
        log: its stdout and stderr.
    """

    def __init__(self, sandbox: Sandbox, launch: Manifest, log: Path) -> None:
        self.log = log
        path = log.with_suffix(".launch.json")
        path.write_text(json.dumps(launch))
        self._report, report = os.pipe()
        os.set_blocking(self._report, False)
        self._said = ""
        argv = [*WITH_US, *sandbox.prefix, sys.executable, "-I", "-S"]
        argv += [str(_PROGRAM), str(path), str(report)]
        try:
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=[report],
                    env={"PATH": os.environ["PATH"]},
                    start_new_session=True,
                )
        finally:
            os.close(report)

    @property
    def said(self) -> str:
        """What the last steps before the command reported; empty as long as they go on."""
        try:
            self._said += os.read(self._report, 65536).decode() if self._report >= 0 else ""
        except BlockingIOError:
            pass
        return self._said

    def exit_code(self) -> int | None:
        """As a runtime tells it: 128+n for a signal; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        if self._report >= 0:
            _ = self.said
            os.close(self._report)
            self._report = -1
        return code if code >= 0 else 128 - code

    @property
    def pid(self) -> int | None:
        """Of the container's process 1, as this machine counts; None when it is not there."""
        try:
            children = psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return None
        return children[0].pid if children else None

    def send(self, number: int) -> None:
        """A signal to process 1."""
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
