"""What a rank died of, as far as its own node can see."""

from __future__ import annotations

import signal

from dist_train.agent.blame import is_peer_symptom
from dist_train.agent.relayed import innermost
from dist_train.agent.settings import Settings
from dist_train.agent.workers import Rank
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure, FailureClass

_HINTS = {
    int(signal.SIGKILL): " (often the kernel's out-of-memory killer: see `dmesg`)",
    int(signal.SIGBUS): " (often a full /dev/shm or a truncated file: see `df /dev/shm`)",
}


def failure_of(rank: Rank, settings: Settings, attempt: int, step: int | None) -> Failure:
    """Exit status, error record and last words as one Failure."""
    record = rank.error_record() or {}
    code = rank.returncode or 0
    exception = _text(record.get("exception"))
    message = _text(record.get("text")) or ""
    log_tail = tuple(rank.stderr_tail)
    cls, said = _classify(rank, exception, message, log_tail)
    line = record.get("line")
    return Failure(
        source="dist-train" if record.get("source") == "dist-train" else "rank",
        cls=cls,
        rank=rank.rank,
        local_rank=rank.local_rank,
        node_rank=settings.node,
        host=settings.host,
        pid=rank.process.pid,
        exit_code=_exit_code(rank, code),
        signal=-code if code < 0 else None,
        exception=exception,
        message=said,
        file=_text(record.get("file")),
        line=line if isinstance(line, int) else None,
        traceback=_text(record.get("traceback")),
        mend=_text(record.get("mend")),
        log=str(rank.log.path),
        log_tail=log_tail,
        attempt=attempt,
        step=step,
    )


def _classify(
    rank: Rank, exception: str | None, message: str, log_tail: tuple[str, ...]
) -> tuple[FailureClass, str]:
    code = rank.returncode or 0
    if rank.overdue is not None:
        return "hang", rank.overdue
    if code < 0:
        return "signal", f"killed by {_signal_name(-code)}"
    if exception is not None:
        peer = is_peer_symptom(exception, message)
        return ("victim" if peer else "exception"), f"{exception}: {innermost(message)}"
    last = log_tail[-1] if log_tail else ""
    if is_peer_symptom(None, last):
        return "victim", last
    return "exit", f"exited with code {code}"


def _exit_code(rank: Rank, code: int) -> int:
    if rank.overdue is not None:
        return 128 + signal.SIGTERM if rank.interrupted else ExitCode.EARLY_EXIT
    return 128 - code if code < 0 else code


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = "an unknown signal"
    return f"signal {number} ({name}){_HINTS.get(number, '')}"


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
