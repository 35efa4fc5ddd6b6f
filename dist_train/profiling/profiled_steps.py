"""Which optimizer steps and ranks are profiled: the words of `--profile` and `--profile-ranks`."""

from __future__ import annotations

import re
from dataclasses import dataclass

NONE = "none"
# After the first steps: kernels are chosen, buckets built, caches filled.
DEFAULT = "11:15"
# The profiler is switched on at the end of one step and runs through another before the first that counts.
FIRST_STEP = 3
# A trace has some 0.3 to 3 MB per step, and is in memory until it is written.
MOST_STEPS = 50

_STEPS = re.compile(r"(\d{1,12})(?::(\d{1,12}))?")
_RANKS = re.compile(r"all|\d{1,9}(,\d{1,9})*")


@dataclass(frozen=True)
class ProfiledSteps:
    """Optimizer steps of an attempt, counted from 1 at its start; both ends included."""

    first: int
    last: int

    @property
    def count(self) -> int:
        """How many they are."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.first}:{self.last}"


def parse_steps(text: str) -> ProfiledSteps | None:
    """Read `10:15`, `12` or `none`, which is None; raises ValueError with what to write instead."""
    if text == NONE:
        return None
    found = _STEPS.fullmatch(text)
    if found is None:
        raise ValueError(f"expected FIRST:LAST, such as {DEFAULT}, or {NONE}")
    steps = ProfiledSteps(int(found[1]), int(found[2] or found[1]))
    if steps.count < 1:
        raise ValueError(f"the first step comes after the last; did you mean {steps.last}:{steps.first}?")
    if steps.first < FIRST_STEP:
        raise ValueError(
            f"the first steps warm up, and step {FIRST_STEP} is the first that can be profiled: "
            f"try {ProfiledSteps(FIRST_STEP, FIRST_STEP + min(steps.count, MOST_STEPS) - 1)}"
        )
    if steps.count > MOST_STEPS:
        raise ValueError(
            f"{steps.count} steps are too many, a trace is kept in memory and holds at most {MOST_STEPS}: "
            f"try {ProfiledSteps(steps.first, steps.first + MOST_STEPS - 1)}"
        )
    return steps


def parse_ranks(text: str) -> frozenset[int] | None:
    """Read `0,3`, or `all`, which is None; raises ValueError."""
    if _RANKS.fullmatch(text) is None:
        raise ValueError("expected `all` or ranks such as 0,3")
    return None if text == "all" else frozenset(int(rank) for rank in text.split(","))


def is_profiled(ranks: str, rank: int) -> bool:
    """Whether the words of `--profile-ranks` name this rank."""
    named = parse_ranks(ranks)
    return named is None or rank in named
