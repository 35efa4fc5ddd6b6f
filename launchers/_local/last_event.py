"""The end of a run whose agents were lost: they could not record it, and no start follows."""

from __future__ import annotations

from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, newest_event


def record_last_loss(run: RunDir, exit_code: int) -> None:
    """Append the `finished` event, unless agent 0 has recorded an end itself.

    Args:
        exit_code: the job's.
    """
    last = newest_event(run)
    if last is not None and last["kind"] not in ("finished", "preempted"):
        why = "an agent was lost before it could record the end, and nothing starts it again"
        append_event(run, "finished", last.get("attempt"), exit_code=exit_code, why=why)
