"""The restart rule: whether to start again, counted over the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dist_train.agent.failures.root_cause import is_crash
from dist_train.errors import ExitCode
from dist_train.rundir.failure import Failure
from dist_train.rundir.stop_text import saved_text

# This many attempts in a row without a newer committed step: restarting does not help.
NO_PROGRESS_ATTEMPTS = 3


@dataclass(frozen=True)
class History:
    """The run's past when an attempt has failed.

    Attributes:
        committed: for each attempt so far that failed or was stopped (this one included), the newest
            committed step at its end; None where there was none.
    """

    restarts: int
    committed: tuple[int | None, ...]
    keeps_checkpoints: bool


@dataclass(frozen=True)
class Decision:
    """Whether to start again; else the exit code of the run."""

    restart: bool
    exit_code: int
    why: str


def decide(
    failure: Failure, history: History, max_restarts: int, restart_on: Literal["crash", "any"], stopping: bool
) -> Decision:
    """Apply the restart rule. A lost node ends the attempt on all nodes (79): the launcher restarts it."""
    code = failure.exit_code
    if stopping:
        return Decision(False, code, "failed while it was being stopped")
    if code == ExitCode.NON_FINITE and failure.source == "dist-train":
        return Decision(False, code, "a step that is not finite would be so again (trainer.on_nonfinite)")
    if not (is_crash(failure) or restart_on == "any"):
        return Decision(False, code, "an error of the program is not restarted (--restart-on any insists)")
    if max_restarts == 0:
        return _give_up(failure, "restarts are off (--max-restarts 0)")
    if history.restarts >= max_restarts:
        return _give_up(failure, f"all {max_restarts} restarts are used up")
    if is_stuck(history):
        return Decision(False, ExitCode.NO_PROGRESS, _stuck_reason(history))
    if failure.cls == "node_lost":
        return Decision(False, ExitCode.ATTEMPT_LOST, "a node was lost")
    return Decision(True, code, f"restart {history.restarts + 1} of {max_restarts}")


def decide_stop(history: History) -> Decision:
    """Decide after a stop that all ranks obeyed: 75 (run again), or 76 where that has not helped lately."""
    if is_stuck(history):
        return Decision(False, ExitCode.NO_PROGRESS, _stuck_reason(history))
    newest = history.committed[-1] if history.committed else None
    return Decision(False, ExitCode.PREEMPTED, f"stopped; {saved_text(newest)}")


def _stuck_reason(history: History) -> str:
    return f"no newer committed step in {NO_PROGRESS_ATTEMPTS} attempts (still {history.committed[-1]})"


def _give_up(failure: Failure, why: str) -> Decision:
    """Not with 79, which asks the launcher for another start."""
    lost = failure.exit_code == ExitCode.ATTEMPT_LOST and failure.source == "dist-train"
    return Decision(False, ExitCode.UNAVAILABLE if lost else failure.exit_code, why)


def is_stuck(history: History) -> bool:
    """Whether the last attempts have all ended at the same committed step."""
    last = history.committed[-NO_PROGRESS_ATTEMPTS:]
    return history.keeps_checkpoints and len(last) == NO_PROGRESS_ATTEMPTS and len(set(last)) == 1
