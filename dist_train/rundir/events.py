"""events.jsonl: what happened to the run, in order; agent 0 writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from dist_train.rundir.directory import RunDir
from dist_train.rundir.records import SCHEMA_VERSION, append_line, now_rfc3339, read_lines

EventKind = Literal[
    "submitted",
    "attempt_started",
    "first_failure",
    "restarted",
    "checkpoint_committed",
    "preempted",
    "finished",
]


def append_event(run: RunDir, kind: EventKind, attempt: int | None = None, **fields: Any) -> None:
    """Append one event with its time and attempt."""
    head = {"schema_version": SCHEMA_VERSION, "time": now_rfc3339(), "kind": kind, "attempt": attempt}
    append_line(run.events, {**head, **fields})


def read_events(run: RunDir, kind: EventKind | None = None) -> Iterator[dict[str, Any]]:
    """Every event, or those of one kind; a torn last line is skipped."""
    for event in read_lines(run.events):
        if kind is None or event.get("kind") == kind:
            yield event
