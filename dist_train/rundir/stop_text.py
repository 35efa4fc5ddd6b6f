"""What is known of a stop on request: at which step it was, and what was saved."""

from __future__ import annotations

import json

from dist_train.rundir.directory import RunDir


def preempted_text(run: RunDir, attempt: int | None, rank: int) -> str | None:
    """Return the step of a stop and whether it could save, as a rank's trainer has recorded it; else None."""
    path = run.attempts / str(attempt) / f"error-rank-{rank}.json"
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if record.get("exception") != "Preempted":
        return None
    return str(record.get("text") or "").partition("\n")[0] or None


def saved_text(step: int | None) -> str:
    """Say which checkpoint a stopped run has.

    Args:
        step: the newest committed one; None where there is none.
    """
    return "no checkpoint was saved" if step is None else f"the newest checkpoint is of step {step}"
