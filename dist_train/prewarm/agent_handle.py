"""An agent as its launcher sees it: a child of this process, perhaps one that is still to be forked."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any, Protocol

_POLL_S = 0.01
IMPORT_TITLE = "dist-train import for pid="  # of the prewarmed process, until it is an agent


class AgentProcess(Protocol):
    """What a launcher needs of subprocess.Popen."""

    @property
    def pid(self) -> int:
        """Its process id; 0 while it is still to be forked."""

    @property
    def returncode(self) -> int | Any:
        """How it has ended, as the last poll() found it; negative for a signal."""

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Signal it."""

    def kill(self) -> None:
        """Send SIGKILL."""


class ForkedAgent:
    """An agent that the prewarmed process forks when its import is done.

    Signals that come before are sent when its pid is known.

    Args:
        find_pid: returns its pid; None while it is not known, 0 if it will never be.
    """

    def __init__(self, find_pid: Callable[[], int | None]) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self._find_pid = find_pid
        self._pending: list[int] = []

    def poll(self) -> int | None:
        """Return its exit code if it has ended; SIGKILL's if it was never forked or that is not known."""
        if self.returncode is None and self._is_known():
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                self.returncode = -signal.SIGKILL  # how it ended is not known: no success
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"agent {self.pid}", timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        """Signal it, now or as soon as it has been forked."""
        if self.returncode is not None:
            return
        if not self._is_known():
            self._pending.append(sig)
        elif self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _is_known(self) -> bool:
        if self.pid:
            return True
        found = self._find_pid()
        if found == 0:
            self.returncode = -signal.SIGKILL
        if not found:
            return False
        self.pid = found
        for number in self._pending:
            os.kill(found, number)  # not reaped yet: nobody else has this pid
        self._pending.clear()
        return True
