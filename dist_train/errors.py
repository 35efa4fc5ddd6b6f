"""The error tree: each error carries what was wrong, its cause, its mend and its exit code.

DistTrainError                70  our own fault (the only case with our traceback)
├── UsageError                 2  the command line
├── NotFoundError             66  no such run, file or checkpoint
├── UnavailableError          69  something outside refused or cannot be reached
│   └── RendezvousError       69  a node that never came, a taken port, a stranger on it
├── CheckpointWriteError      74  a checkpoint could not be written
├── Preempted                 75  saved and stopped: run me again
├── NoProgressError           76  no newer committed step in three attempts
├── CancelledError            77  ended by `dist-train cancel`
├── ConfigError               78  found wrong before any process started
│   └── CheckpointError       78  a checkpoint that cannot be used as asked
└── AttemptLost               79  this attempt ended because of another node
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The codes of CONTRACT section 1; the README's table is checked against this class."""

    OK = 0
    EARLY_EXIT = 1
    USAGE = 2
    NOT_FOUND = 66
    UNAVAILABLE = 69
    INTERNAL = 70
    CHECKPOINT_WRITE = 74
    PREEMPTED = 75
    NO_PROGRESS = 76
    CANCELLED = 77
    CONFIG = 78
    ATTEMPT_LOST = 79
    INTERRUPTED = 130


class DistTrainError(Exception):
    """What was wrong (with its value), why, what mends it, and the exit code that says so.

    Args:
        what: one sentence with the wrong value in it.
        cause: why it is wrong, where that is not plain.
        mend: what to do; a command to copy where there is one.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, what: str, *, cause: str | None = None, mend: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.mend = mend

    def __str__(self) -> str:
        lines = [self.what]
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.mend:
            lines.append(f"  mend:  {self.mend}")
        return "\n".join(lines)


class UsageError(DistTrainError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE


class NotFoundError(DistTrainError):
    """No such run, file or checkpoint."""

    exit_code = ExitCode.NOT_FOUND


class UnavailableError(DistTrainError):
    """Something outside refused or cannot be reached: scheduler, API server, port, node."""

    exit_code = ExitCode.UNAVAILABLE


class RendezvousError(UnavailableError):
    """The nodes did not come together: one is missing, the port is taken, a stranger answers."""


class CheckpointWriteError(DistTrainError):
    """A checkpoint could not be written (no space, no permission, the device failed)."""

    exit_code = ExitCode.CHECKPOINT_WRITE


class Preempted(DistTrainError):
    """The run was asked to stop, has saved, and wants to be run again."""

    exit_code = ExitCode.PREEMPTED


class NoProgressError(DistTrainError):
    """Restarting does not help: no newer committed step in three attempts."""

    exit_code = ExitCode.NO_PROGRESS


class CancelledError(DistTrainError):
    """Ended by another command."""

    exit_code = ExitCode.CANCELLED


class ConfigError(DistTrainError):
    """Found wrong before any process started: a config, a file, a count, a directory."""

    exit_code = ExitCode.CONFIG


class CheckpointError(ConfigError):
    """A checkpoint cannot be used: damaged, or made for another model, data set or config."""


class AttemptLost(DistTrainError):
    """This attempt ended because of another node; the launcher should start it again."""

    exit_code = ExitCode.ATTEMPT_LOST
