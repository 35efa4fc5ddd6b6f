"""Estimate the remaining time of a run from the steps done and their times."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_APART_S = 5.0
_KEPT = 120


@dataclass
class Eta:
    """Extrapolate the speed of about the last ten minutes, evaluations and saves included."""

    _seen: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _newest: tuple[int, float] | None = None

    def see(self, step: int, at_s: float) -> None:
        """Record that `step` steps were done at this time (of any one clock); a step back starts over."""
        if self._newest is not None and step < self._newest[0]:
            self._seen.clear()
        self._newest = (step, at_s)
        if not self._seen or at_s - self._seen[-1][1] >= _APART_S:
            self._seen.append(self._newest)

    def seconds(self, total_steps: int) -> float | None:
        """Seconds until `total_steps` are done; None until two different steps have been recorded."""
        if self._newest is None:
            return None
        (first, began), (last, ended) = self._seen[0], self._newest
        if last <= first or ended <= began:
            return None
        return max(0, total_steps - last) * (ended - began) / (last - first)
