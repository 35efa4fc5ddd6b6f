"""A rank after its fork: it waits until the agent knows of it, and becomes what a new process would be."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from dist_train.agent.warm_parent.late_variables import watch_late_variables
from dist_train.agent.warm_parent.process_reset import reset_process
from dist_train.agent.warm_parent.shared_modules import SharedModules

_REPARENTED_S = 10.0


class RankForked(BaseException):
    """Raised in a rank after its fork: it leaves the agent's frames, and worker_main runs it.

    Attributes:
        argv: the arguments of worker_main.
        shared: what it shares with its parent.
    """

    def __init__(self, argv: Sequence[str], shared: SharedModules) -> None:
        super().__init__("a forked rank")
        self.argv = list(argv)
        self.shared = shared


@dataclass(frozen=True)
class RankStart:
    """One rank to fork.

    Attributes:
        argv: the arguments of worker_main; the first is the agent's pid.
        environ: its whole environment.
        folder: its working directory.
    """

    argv: list[str]
    environ: dict[str, str]
    folder: str


def become_rank(start: RankStart, stdout: int, stderr: int, go: int) -> None:
    """Turn this fork into the rank; returns once the agent has taken it over, or ends the process.

    Args:
        stdout: descriptor of the pipe for its output.
        stderr: likewise.
        go: descriptor from which the agent lets it read a byte when it knows of this rank.
    """
    os.setsid()
    if os.read(go, 1) != b"g" or not is_child_of(int(start.argv[0])):
        os._exit(1)
    reset_process(start.environ, start.folder, {1: stdout, 2: stderr})
    watch_late_variables()
    sys.orig_argv[:] = [sys.executable, "-u", "-P", "-m", "dist_train.agent.workers.worker_main", *start.argv]


def is_child_of(agent: int) -> bool:
    """Whether this pid has become this process's parent; it does when the process between has ended."""
    deadline = time.monotonic() + _REPARENTED_S
    while os.getppid() != agent:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
