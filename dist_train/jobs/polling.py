"""How often a scheduler is queried: every 2 s at first, 60 s while nothing changes. (Sites ban pollers.)"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from dist_train.jobs.launcher import JobHandle

FIRST_S = 2.0
LONGEST_S = 60.0
_GROWTH = 1.5

Answer = TypeVar("Answer")


class Backoff:
    """Waiting times that grow while nothing changes."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self.wait_s = first_s

    def grow(self) -> None:
        """Wait longer the next time."""
        self.wait_s = min(self._longest_s, self.wait_s * _GROWTH)

    def reset(self) -> None:
        """Wait as at first."""
        self.wait_s = self._first_s


class Pace(Generic[Answer]):
    """Caches one job's last answer until the next query is due, or the job's records have changed."""

    def __init__(
        self,
        look: Callable[[JobHandle], Answer],
        clock: Callable[[], float] = time.monotonic,
        same: Callable[[Answer, Answer], bool] = operator.eq,
    ) -> None:
        """Pace queries by `look`; `same`: whether two answers differ in nothing that matters."""
        self._same = same
        self._look = look
        self._clock = clock
        self._answer: Answer | None = None
        self._asked_at = 0.0
        self._backoff = Backoff(FIRST_S, LONGEST_S)
        self._happened: Hashable = None

    def hurry(self) -> None:
        """Reset the waiting time: a change is expected."""
        self._backoff.reset()

    def ask(self, handle: JobHandle, happened: Hashable = None) -> Answer:
        """The last answer, or a new one.

        Args:
            happened: a value that differs when the job's own records have changed; after a change the query
                is repeated after the shortest wait.
        """
        waited = self._clock() - self._asked_at
        changed = happened != self._happened
        if self._answer is not None and waited < (FIRST_S if changed else self._backoff.wait_s):
            return self._answer
        answer = self._look(handle)
        known = self._answer is not None and self._same(answer, self._answer)
        if known and not changed:
            self._backoff.grow()
        else:
            self._backoff.reset()
        self._answer, self._asked_at, self._happened = answer, self._clock(), happened
        return answer
