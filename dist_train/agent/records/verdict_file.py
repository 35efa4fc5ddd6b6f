"""`control/verdict-<job>`: how the job ended, for its launcher and the scheduler's script."""

from __future__ import annotations

from dist_train.agent.settings import Settings
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure
from dist_train.rundir.records import write_bytes_atomic

_RESERVED_CODES = range(66, 80)


def write_verdict(settings: Settings, code: int, why: str = "") -> None:
    """Write the exit code and, perhaps, the reason."""
    text = f"{int(code)} {' '.join(why.split())}".strip()
    write_bytes_atomic(settings.run.control / f"verdict-{settings.job}", f"{text}\n".encode())


def code_for_scheduler(code: int, failure: Failure | None) -> int:
    """Replace a rank's own 66 to 79 by 1: a scheduler must not take them for ours."""
    from_rank = failure is not None and failure.source == "rank" and code in _RESERVED_CODES
    return int(ExitCode.EARLY_EXIT) if from_rank else code
