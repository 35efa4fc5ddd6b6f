"""events.jsonl: the events of a run, in order; agent 0 writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from dist_train.rundir.directory import RunDir
from dist_train.rundir.records import (
    SCHEMA_VERSION,
    FileTail,
    append_line,
    now_rfc3339,
    parse_line,
    read_lines,
)

EventKind = Literal[
    "submitted",
    "attempt_started",
    "first_failure",
    "restarted",
    "checkpoint_committed",
    "preempted",
    "finished",
]


# As append_event writes it. A run of weeks has many of them, and checkpoints/ lists the commits too.
_COMMITTED = b'"kind": "checkpoint_committed"'


def append_event(run: RunDir, kind: EventKind, attempt: int | None = None, **fields: Any) -> None:
    """Append one event with its time and attempt."""
    head = {"schema_version": SCHEMA_VERSION, "time": now_rfc3339(), "kind": kind, "attempt": attempt}
    append_line(run.events, {**head, **fields})


def read_events(run: RunDir, kind: EventKind | None = None) -> Iterator[dict[str, Any]]:
    """Read every event, or those of one kind; a torn last line is skipped."""
    for event in read_lines(run.events):
        if kind is None or event.get("kind") == kind:
            yield event


def newest_event(run: RunDir) -> dict[str, Any] | None:
    """Return the event that tells the run's state; None before the first.

    Commits are left out: they are found by polling, so that one may be appended after the end of its attempt.
    """
    newest = None
    for event in read_events(run):
        if event["kind"] != "checkpoint_committed":
            newest = event
    return newest


class RecentEvents:
    """The events since the last launch or resume, without commits; made for repeated reading."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._lines = FileTail(run.events)
        self._events: list[dict[str, Any]] = []
        self._unreadable = 0

    def read(self) -> list[dict[str, Any]]:
        """All of them so far; reads only what was appended since the last call.

        Raises:
            OSError: the file is there and cannot be read.
        """
        for line in self._lines.read_new():
            event = None if _COMMITTED in line else parse_line(line)
            if event is None or "kind" not in event:
                self._unreadable += _COMMITTED not in line and bool(line.strip())
                continue
            if event["kind"] == "submitted":
                self._events = []
            else:
                self._events.append(event)
        return list(self._events)

    @property
    def problem(self) -> str | None:
        """What is missing of what `read` has read: an attempt and restarts may be unknown for it."""
        if self._unreadable:
            lines = "1 line" if self._unreadable == 1 else f"{self._unreadable} lines"
            return f"{lines} of {self._run.events.name} cannot be read (damaged, or cut off by a kill)"
        # The launcher writes the first event before anything begins.
        return None if self._run.events.exists() else f"{self._run.events.name} is not there"


def attempts_of_submission(run: RunDir) -> int:
    """How many attempts have begun since the last launch or resume."""
    return sum(event["kind"] == "attempt_started" for event in RecentEvents(run).read())
