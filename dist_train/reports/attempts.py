"""The attempts of a run as its events tell of them: when each began, on which hosts, how and why it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

How = Literal["running", "done", "failed", "restarted", "preempted", "stopped", "lost"]


@dataclass(frozen=True)
class Attempt:
    """One attempt; times by the wall clock.

    Args:
        number: from 0, as records count.
        resume_step: the newest checkpoint at its start; None: from the beginning.
        how: how it ended; running until an event says so.
        cause: the first failure that was reported in it, as text.
        why: what was decided, and the reason.
        failed_at, failed_step: when that failure was reported, and at which step, where it is known.
    """

    number: int
    began: float
    hosts: tuple[str, ...] = ()
    resume_step: int | None = None
    how: How = "running"
    ended: float | None = None
    cause: str | None = None
    why: str | None = None
    exit_code: int | None = None
    failed_at: float | None = None
    failed_step: int | None = None


def attempts_of(events: Iterable[Mapping[str, Any]]) -> tuple[Attempt, ...]:
    """The attempts in their order; events without a time or of an unknown kind are passed over."""
    found: list[Attempt] = []
    for event in events:
        at = event_time(event)
        if at is None:
            continue
        if event.get("kind") == "attempt_started":
            found.append(_begun(event, at, len(found)))
        elif found and found[-1].how == "running":
            found[-1] = _changed(found[-1], event, at)
    return tuple(found)


def event_time(event: Mapping[str, Any]) -> float | None:
    """When it happened, by the wall clock."""
    try:
        return datetime.fromisoformat(event["time"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None


def _begun(event: Mapping[str, Any], at: float, count: int) -> Attempt:
    number, hosts, step = event.get("attempt"), event.get("hosts"), event.get("resume_step")
    return Attempt(
        number=number if isinstance(number, int) else count,
        began=at,
        hosts=tuple(map(str, hosts)) if isinstance(hosts, list) else (),
        resume_step=step if isinstance(step, int) else None,
    )


def _changed(attempt: Attempt, event: Mapping[str, Any], at: float) -> Attempt:
    why = None if event.get("why") is None else str(event["why"])
    match event.get("kind"):
        case "first_failure" if attempt.cause is None:
            step = event.get("step")
            step = step if isinstance(step, int) else None
            return replace(attempt, cause=_cause(event), failed_at=at, failed_step=step)
        case "restarted":
            seen = bool(event.get("end_seen", True))
            return replace(attempt, how="restarted" if seen else "lost", ended=at if seen else None, why=why)
        case "preempted":
            return replace(attempt, how="preempted", ended=at, why=why)
        case "finished":
            code = event.get("exit_code")
            how: How = "stopped" if event.get("stopped") else "done" if code == 0 else "failed"
            return replace(
                attempt, how=how, ended=at, why=why, exit_code=code if isinstance(code, int) else None
            )
        case "submitted":  # it went on without a word of the attempt's end
            return replace(attempt, how="lost")
    return attempt


def _cause(event: Mapping[str, Any]) -> str:
    rank, node = event.get("rank"), event.get("node_rank")
    who = f"rank {rank}" if rank is not None else f"node {node}" if node is not None else "the job"
    what = event.get("message") or event.get("failure_class") or "failed"
    step = event.get("step")
    return f"{who}{'' if step is None else f', step {step}'}: {what}"
