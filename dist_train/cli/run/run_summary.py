"""Attempt, restarts, newest checkpoint, last metrics and failure of a run, from its records."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.device_record import RankDevice, read_devices
from dist_train.rundir.events import RecentEvents
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.metrics_file import last_metrics
from dist_train.rundir.step_names import step_name


@dataclass(frozen=True)
class RunSummary:
    """A summary of a run's records: None for what does not exist (yet); ages in seconds."""

    attempt: int | None
    restarts: int
    submitted_age_s: float | None
    checkpoint_step: int | None
    checkpoint_age_s: float | None
    train: dict[str, Any] | None
    evaluation: dict[str, Any] | None
    failure: Failure | None
    devices: tuple[RankDevice, ...] = ()
    events_problem: str | None = None


def summarize(run: RunDir, events: list[dict[str, Any]] | None = None) -> RunSummary:
    """Read the records, without a query to the cluster.

    Args:
        events: since the last launch or resume; None reads them.
    """
    events, problem = _read_events(run) if events is None else (events, None)
    step, attempt = newest_step(run), newest_attempt(run)
    manifest = None if step is None else run.checkpoints / step_name(step) / "manifest.json"
    if manifest is not None and run.remote_checkpoints.exists():
        manifest = run.remote_checkpoints  # written after each commit
    records = last_metrics(run.metrics)[::-1]
    return RunSummary(
        attempt=attempt,
        restarts=sum(event["kind"] == "restarted" for event in events),
        submitted_age_s=_age(run.job),
        checkpoint_step=step,
        checkpoint_age_s=None if manifest is None else _age(manifest),
        train=_last(records, "train"),
        evaluation=_last(records, "eval"),
        failure=_current_failure(run, events),
        devices=() if attempt is None else read_devices(run, attempt),
        events_problem=problem,
    )


def _read_events(run: RunDir) -> tuple[list[dict[str, Any]], str | None]:
    """The events since the last launch or resume, and what is missing of them."""
    recent = RecentEvents(run)
    try:
        return recent.read(), recent.problem
    except OSError as error:
        return [], f"{run.events.name} cannot be read: {error.strerror}"


def newest_attempt(run: RunDir) -> int | None:
    """The highest attempt number that was taken."""
    if not run.attempts.is_dir():
        return None
    return max((int(path.name) for path in run.attempts.iterdir() if path.name.isdigit()), default=None)


def _current_failure(run: RunDir, events: list[dict[str, Any]]) -> Failure | None:
    """failure.json, unless it is of an attempt before the last launch or resume."""
    try:
        failure = read_failure(run)
    except (ValueError, KeyError, TypeError):
        return None
    if failure is None or all(event.get("attempt") != failure.attempt for event in events):
        return None
    return failure


def _last(records: list[dict[str, Any]], kind: str) -> dict[str, Any] | None:
    return next((record for record in records if record.get("kind", "train") == kind), None)


def _age(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None
