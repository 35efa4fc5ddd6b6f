"""The attempts of a run as its events tell of them: when each began, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from dist_train.errors import ExitCode

End = Literal["done", "failed", "stopped", "unseen"]
_ENDS: dict[int, End] = {
    ExitCode.OK: "done",
    ExitCode.CANCELLED: "stopped",
    ExitCode.INTERRUPTED: "stopped",
}


@dataclass(frozen=True)
class AttemptHistory:
    """What the events say of one attempt; times in seconds of the wall clock.

    Args:
        begins: the end of the attempt before, or the submission; None: not known.
        queued: whether a scheduler had the job until the agent started.
        resubmitted: the attempt is the first of a launch or resume.
        submission_seen: `begins` of such an attempt is when it was submitted, not when its agent noted that.
        agent_started: of node 0.
        joins_since: since when node 0 has waited for the other nodes.
        started: when all nodes were there, and the ranks were started.
        resume_step: the newest checkpoint then.
        ended_at: None while it runs, and where nobody saw its end.
        failed_at: the first failure that node 0 was told of.
    """

    attempt: int
    begins: float | None
    queued: bool
    resubmitted: bool
    submission_seen: bool
    agent_started: float
    joins_since: float
    started: float
    resume_step: int | None
    end: End | None = None
    ended_at: float | None = None
    failed_at: float | None = None


def attempt_history(events: Iterable[Mapping[str, Any]]) -> list[AttemptHistory] | None:
    """The attempts in their order; None if an older version, which recorded no times, has written them."""
    found: list[AttemptHistory] = []
    boundary: float | None = None
    queued, resubmitted, seen = False, True, False
    for event in events:
        kind, at = event.get("kind"), _seconds(event)
        if kind == "submitted":
            queued, resubmitted, boundary = event.get("launcher") != "local", True, at
            seen = event.get("noted_by") != "agent"
        elif kind == "attempt_started":
            if "agent_started" not in event:
                return None
            found.append(_begun(event, at, boundary, (queued, resubmitted, seen)))
            resubmitted = False
        elif found and found[-1].attempt == event.get("attempt") and found[-1].end is None:
            changed = found[-1] = _changed(found[-1], event, at)
            if changed.end is not None:
                boundary = changed.ended_at  # None: where the attempt's own clock ended
    return found


def _begun(
    event: Mapping[str, Any], at: float, boundary: float | None, submission: tuple[bool, bool, bool]
) -> AttemptHistory:
    queued, resubmitted, seen = submission
    return AttemptHistory(
        attempt=int(event.get("attempt") or 0),
        begins=boundary,
        queued=queued,
        resubmitted=resubmitted,
        submission_seen=seen,
        agent_started=float(event["agent_started"]),
        joins_since=float(event["joins_since"]),
        started=at,
        resume_step=event.get("resume_step"),
    )


def _changed(attempt: AttemptHistory, event: Mapping[str, Any], at: float) -> AttemptHistory:
    match event.get("kind"):
        case "first_failure" if attempt.failed_at is None:
            return replace(attempt, failed_at=at)
        case "restarted" if event.get("end_seen", True):
            return replace(attempt, end="failed", ended_at=at)
        case "restarted":
            return replace(attempt, end="unseen")
        case "preempted":
            return replace(attempt, end="stopped", ended_at=at)
        case "finished":
            end = "stopped" if event.get("stopped") else _ENDS.get(event.get("exit_code", 0), "failed")
            return replace(attempt, end=end, ended_at=at)
    return attempt


def _seconds(event: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(str(event["time"])).timestamp()
