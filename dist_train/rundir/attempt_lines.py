"""The agent's line at the start of an attempt: what it continues. It tells a pod's attempts."""

from __future__ import annotations

import re

from dist_train.rundir.display_number import display_number, recorded_index
from dist_train.rundir.failure import Failure
from dist_train.rundir.outcome_text import root_cause_name

_LINE = re.compile(r"\[dist-train [^\]]*\] attempt (?P<number>\d+) (?P<how>begins|goes on) from ")


def begin_line(attempt: int, step: int | None) -> str:
    """The line of an agent that has run no attempt before."""
    return f"attempt {display_number(attempt)} begins from {_step(step)}"


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


def _step(step: int | None) -> str:
    return "the beginning (no checkpoint)" if step is None else f"step {step}"
