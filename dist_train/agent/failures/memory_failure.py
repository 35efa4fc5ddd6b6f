"""Say of a failure that the kernel killed for memory. Pure functions."""

from __future__ import annotations

import re
import signal
from dataclasses import replace

from dist_train.jobs.memory_kills import MemoryKill, twice, without_cause
from dist_train.rundir.failure import Failure

_KILLED_WORKER = re.compile(r"DataLoader worker \(pid.*\) (is killed by signal: Killed|exited unexpectedly)")
# Of a child that a rank started and whose end it passes on, as a shell does.
_KILLED_CHILD = 128 + signal.SIGKILL
_LESS = "fewer loader workers (data.workers, workers= of dt.loader), or smaller batches (trainer.accumulate)"


def with_memory_kill(failure: Failure, kill: MemoryKill | None, memory_option: str, counted: bool) -> Failure:
    """Return the failure with what is known of kills for memory.

    Args:
        kill: what the kernel killed for memory shortly before; None: nothing.
        memory_option: the launcher's option for more memory; empty where it has none.
        counted: whether such a kill would have been counted.
    """
    if kill is None:
        return _not_for_memory(failure) if counted else failure
    if not kill.is_own:
        return _perhaps(failure, kill)
    if _is_killed(failure):
        return replace(
            failure,
            cls="out_of_memory",
            message=f"{without_cause(failure.message)}: {kill}",
            hint=_hint(kill, memory_option),
            memory_limit=kill.limit,
            memory_peak=kill.peak,
        )
    if failure.source != "rank" or failure.cls not in ("exception", "exit"):
        return failure
    own = f"{failure.hint}; " if failure.hint else ""
    return replace(failure, hint=f"{own}shortly before, the kernel killed {_processes(kill)} here: {kill}")


def _not_for_memory(failure: Failure) -> Failure:
    if failure.signal != signal.SIGKILL or failure.cls != "signal":
        return failure
    why = "not by the kernel for memory: this control group counts no such kill"
    return replace(failure, message=f"{without_cause(failure.message)} ({why})")


def _perhaps(failure: Failure, kill: MemoryKill) -> Failure:
    if failure.signal != signal.SIGKILL or failure.cls != "signal":
        return failure
    return replace(failure, message=f"{without_cause(failure.message)}: {kill}")


def _is_killed(failure: Failure) -> bool:
    """Whether the kill was of this rank, of its loader worker, or of a child whose end it passes on."""
    if failure.cls == "signal":
        return failure.signal == signal.SIGKILL
    if failure.cls == "exit":
        return failure.exit_code == _KILLED_CHILD
    return failure.cls == "exception" and _KILLED_WORKER.search(failure.message) is not None


def _hint(kill: MemoryKill, option: str) -> str:
    if not option:
        raised = f" (raise it: {kill.limit_file})" if kill.limit_file is not None else ""
        return f"more memory{raised}, {_LESS}"
    amount = f" {twice(kill.limit)}" if kill.limit is not None else ""
    return f"more with {option}{amount}; or less: {_LESS}"


def _processes(kill: MemoryKill) -> str:
    return "a process" if kill.count == 1 else f"{kill.count} processes"
