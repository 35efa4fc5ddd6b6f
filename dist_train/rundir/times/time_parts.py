"""The parts that a run's time is divided into, and their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# In the order in which they are shown. Each second belongs to exactly one.
PARTS = (
    "queue",
    "start",
    "import",
    "membership",
    "restore",
    "data_wait",
    "compute",
    "communication",
    "evaluation",
    "save_stall",
    "stopping",
    "lost",
    "idle",
)
# What is done again when steps are run again.
STEP_PARTS = ("data_wait", "compute", "communication", "evaluation", "save_stall")
# The time of a step itself; waiting for data is none.
USEFUL_PARTS = ("compute", "communication")
# Seconds by part; None: this run cannot tell, and they are within another part.
Parts = Mapping[str, float | None]


@dataclass(frozen=True)
class AttemptTime:
    """The time of one attempt.

    Args:
        attempt: its number, from 0.
        wall_s: from the end of the attempt before, or from the submission, to its own end.
    """

    attempt: int
    wall_s: float
    parts: Parts


@dataclass(frozen=True)
class RunTime:
    """The time of a run: that of its attempts."""

    attempts: Sequence[AttemptTime]

    @property
    def wall_s(self) -> float:
        """Seconds of all attempts."""
        return sum(attempt.wall_s for attempt in self.attempts)

    @property
    def parts(self) -> dict[str, float | None]:
        """Seconds by part over all attempts; None for what no attempt can tell."""
        found: dict[str, float | None] = {}
        for part in PARTS:
            known = [s for attempt in self.attempts if (s := attempt.parts[part]) is not None]
            found[part] = sum(known) if known else None
        return found

    @property
    def useful_s(self) -> float:
        """Seconds in steps whose result was kept: compute and communication."""
        return sum(self.parts[part] or 0.0 for part in USEFUL_PARTS)

    @property
    def goodput(self) -> float | None:
        """Useful seconds by those since the nodes were given, 0 to 1; None before any."""
        return self._share(self.wall_s - (self.parts["queue"] or 0.0))

    @property
    def goodput_with_queue(self) -> float | None:
        """Useful seconds by all, 0 to 1; None if the time in the queue is not known."""
        return None if self.parts["queue"] is None else self._share(self.wall_s)

    def _share(self, wall_s: float) -> float | None:
        return self.useful_s / wall_s if wall_s > 0 else None

    def to_record(self) -> dict[str, Any]:
        """The object `time` of result.json and of `status --json`; seconds, None for what is not known."""
        return {
            "seen_by": "rank 0",
            "wall_s": _rounded(self.wall_s),
            "useful_s": _rounded(self.useful_s),
            "goodput": _rounded(self.goodput),
            "goodput_with_queue": _rounded(self.goodput_with_queue),
            "total": {part: _rounded(seconds) for part, seconds in self.parts.items()},
            "attempts": [
                {
                    "attempt": attempt.attempt,
                    "wall_s": _rounded(attempt.wall_s),
                    **{part: _rounded(attempt.parts[part]) for part in PARTS},
                }
                for attempt in self.attempts
            ],
        }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
