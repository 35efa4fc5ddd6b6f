"""What agents that were lost could not record: that a start was lost, or the end of a run."""

from __future__ import annotations

from pathlib import Path

from dist_train.errors import ExitCode
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, newest_event, read_events
from dist_train.rundir.records import write_bytes_atomic


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


def record_early_stop(run: RunDir, verdict_file: Path) -> None:
    """Record Ctrl-C as node 0 does, for agents that have not begun: they still import torch, and are killed.

    Args:
        run: its newest event is that it was submitted, or that agents start again.
        verdict_file: of this start.
    """
    write_bytes_atomic(verdict_file, f"{int(ExitCode.PREEMPTED)}\n".encode())
    why, code = "stopped before an attempt had begun", int(ExitCode.INTERRUPTED)
    append_event(run, "preempted", 0, step=None, why=why, exit_code=code)


def restarts(run: RunDir) -> int:
    """Restarts since the last launch or resume, as the events have them."""
    count = 0
    for event in read_events(run):
        count = 0 if event["kind"] == "submitted" else count + (event["kind"] == "restarted")
    return count
