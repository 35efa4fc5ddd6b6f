"""What agents that were lost could not record: that a start was lost, or the end of a run."""

from __future__ import annotations

from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, newest_event, read_events


def record_last_loss(run: RunDir, exit_code: int) -> None:
    """Append the `finished` event, unless agent 0 has recorded an end itself.

    Args:
        exit_code: the job's.
    """
    last = newest_event(run)
    if last is not None and last["kind"] not in ("finished", "preempted"):
        why = "an agent was lost before it could record the end, and nothing starts it again"
        append_event(run, "finished", last.get("attempt"), exit_code=exit_code, why=why)


def record_lost_start(run: RunDir, restarts_before: int) -> None:
    """Count a start whose agent 0 was lost before an attempt began; one that began is counted by the next.

    Args:
        restarts_before: `restarts` when the agents were started.
    """
    last = newest_event(run)
    if last is None or last["kind"] not in ("submitted", "restarted"):
        return
    if restarts(run) == restarts_before:
        why = "the agent of node 0 was lost before an attempt began"
        append_event(run, "restarted", last.get("attempt"), why=why, began=False)


def restarts(run: RunDir) -> int:
    """Restarts since the last launch or resume, as the events have them."""
    count = 0
    for event in read_events(run):
        count = 0 if event["kind"] == "submitted" else count + (event["kind"] == "restarted")
    return count
