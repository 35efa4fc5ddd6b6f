"""A rank as its agent sees it: a child with two pipes, spawned by subprocess or forked by the warm parent."""

from __future__ import annotations

import io
import os
from typing import IO, Protocol


class RankProcess(Protocol):
    """What the agent needs of subprocess.Popen."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """The reading end of its output."""

    @property
    def stderr(self) -> IO[bytes] | None:
        """The reading end of its error output."""

    def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""


class ForkedProcess:
    """A rank that the warm parent has forked; a child of this process.

    Args:
        stdout: descriptor of the pipe, owned from now on.
        stderr: likewise.
    """

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = io.FileIO(stdout)
        self.stderr: IO[bytes] | None = io.FileIO(stderr)
        self._returncode: int | None = None

    def close_outputs(self) -> None:
        """Close both pipes: it will not be used."""
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        if self._returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self._returncode = os.waitstatus_to_exitcode(status)
        return self._returncode
