"""The tree of errors: each has what was wrong, its cause, a hint and an exit code.

DistTrainError                70  an internal error (the only case with our traceback)
├── UsageError                 2  the command line
├── NotFoundError             66  no such run, file or checkpoint
├── UnavailableError          69  an external service refused or cannot be reached
│   └── RendezvousError       69  a missing node, a port in use, another program on it
├── NonFiniteError            73  a loss or gradient that is not finite
├── CheckpointWriteError      74  a checkpoint could not be written
├── Preempted                 75  saved and stopped: resume it
├── NoProgressError           76  no newer committed step in three attempts
├── CancelledError            77  ended by `dist-train cancel`
├── ConfigError               78  refused before any process started
│   └── CheckpointError       78  a checkpoint that cannot be used as asked
└── AttemptLost               79  this attempt ended because of another node
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """The exit codes; a test compares docs/exit-codes.md with this class."""

    OK = 0
    EARLY_EXIT = 1
    USAGE = 2
    NOT_FOUND = 66
    UNAVAILABLE = 69
    INTERNAL = 70
    NON_FINITE = 73
    CHECKPOINT_WRITE = 74
    PREEMPTED = 75
    NO_PROGRESS = 76
    CANCELLED = 77
    CONFIG = 78
    ATTEMPT_LOST = 79
    INTERRUPTED = 130


class DistTrainError(Exception):
    """Base of all errors: what was wrong (with its value), why, what to do, and the exit code.

    Args:
        what: one sentence with the wrong value in it.
        cause: why it is wrong, unless that is obvious.
        hint: what to do, if possible a command to copy.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, what: str, *, cause: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.what]
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)


class UsageError(DistTrainError):
    """The command line is wrong."""

    exit_code = ExitCode.USAGE


class NotFoundError(DistTrainError):
    """No such run, file or checkpoint."""

    exit_code = ExitCode.NOT_FOUND


class UnavailableError(DistTrainError):
    """An external service refused or cannot be reached: scheduler, API server, port, node."""

    exit_code = ExitCode.UNAVAILABLE


class RendezvousError(UnavailableError):
    """The nodes did not find each other: one is missing, the port is in use, another program answers."""


class NonFiniteError(DistTrainError):
    """A loss or gradient is not finite (nan or infinite); the same on all ranks, and never restarted."""

    exit_code = ExitCode.NON_FINITE


class CheckpointWriteError(DistTrainError):
    """A checkpoint could not be written (no space, no permission, the device failed)."""

    exit_code = ExitCode.CHECKPOINT_WRITE


class Preempted(DistTrainError):
    """The run was asked to stop, has saved, and can be resumed."""

    exit_code = ExitCode.PREEMPTED


class NoProgressError(DistTrainError):
    """Restarts do not help: no newer committed step in three attempts."""

    exit_code = ExitCode.NO_PROGRESS


class CancelledError(DistTrainError):
    """Ended by `dist-train cancel`."""

    exit_code = ExitCode.CANCELLED


class ConfigError(DistTrainError):
    """Refused before any process started: a config, a file, a count, a directory."""

    exit_code = ExitCode.CONFIG


class CheckpointError(ConfigError):
    """A checkpoint cannot be used: it is damaged, or of another model, data set or config."""


class AttemptLost(DistTrainError):
    """This attempt ended because of another node; the launcher should restart it."""

    exit_code = ExitCode.ATTEMPT_LOST


def forget_interrupt() -> None:
    """Keep the exit code of a process that has handled a KeyboardInterrupt.

    One that has passed through exec() of a text (every dataclass is made so) is noted as unhandled, and
    `python -m` then ends itself by SIGINT, whatever its exit code. The next exec() of a text forgets it
    (run_eval_code_obj in CPython's pythonrun.c; Py_RunMain in main.c).
    """
    exec("")
