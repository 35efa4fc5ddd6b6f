"""The agent's line at the start of an attempt: what it continues. It tells a pod's attempts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from dist_train.rundir.display_number import display_number, recorded_index
from dist_train.rundir.failure import Failure
from dist_train.rundir.outcome_text import root_cause_name

_LINE = re.compile(r"\[dist-train [^\]]*\] attempt (?P<number>\d+) (?P<how>begins|goes on) from ")
_START = re.compile(r"\(start (\d+) of this submission\)$")


def begin_line(attempt: int, step: int | None, start: int = 1) -> str:
    """The line of an agent that has run no attempt before.

    Args:
        start: which attempt of the submission it is, from 1.
    """
    which = f" (start {start} of this submission)" if start > 1 else ""
    return f"attempt {display_number(attempt)} begins from {_step(step)}{which}"


def restart_line(attempt: int, step: int | None, failure: Failure, why: str) -> str:
    """The line of an agent that starts its ranks again.

    Args:
        why: the decision, `restart 1 of 3`.
    """
    cause = f"{root_cause_name(failure)}: {failure.message or failure.cls}"
    return f"attempt {display_number(attempt)} goes on from {_step(step)}: {cause} ({why})"


def read_attempt(line: str) -> tuple[int, bool] | None:
    """The attempt of such a line, and whether its agent has begun with it; None for other lines."""
    found = _LINE.match(line)
    return None if found is None else (recorded_index(int(found["number"])), found["how"] == "begins")


def count_restarts(lines: Iterable[str]) -> int:
    """How often the ranks were started again since the submission, by one agent's lines from its first on."""
    # An agent whose first attempt is the run's first prints nothing at its start.
    first, earlier, last = 0, 0, 0
    for line in lines:
        if (found := read_attempt(line)) is None:
            continue
        last, begins = found
        if begins:
            start = _START.search(line)
            first, earlier = last, int(start[1]) - 1 if start is not None else 0
    return earlier + last - first


def _step(step: int | None) -> str:
    return "the beginning (no checkpoint)" if step is None else f"step {step}"
