"""How fast training goes, and how much of its time it waits for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass
class _Window:
    """Seconds since some moment, without what was taken out (evaluations, saves)."""

    began: float
    samples: int = 0
    waited: float = 0.0
    paused: float = 0.0


class Pace:
    """Samples per second and the share of time spent waiting for data, over training alone."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._whole = _Window(clock())
        self._recent = _Window(clock())

    def waiting(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time that each lets us wait is counted."""
        iterator = iter(items)
        while True:
            began = self._clock()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self._add(waited=self._clock() - began)
            yield item

    def count(self, samples: int) -> None:
        """`samples` of the whole job are done."""
        self._add(samples=samples)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What happens inside is not training."""
        began = self._clock()
        try:
            yield
        finally:
            self._add(paused=self._clock() - began)

    def lap(self) -> tuple[float, float]:
        """(samples per second, share of time waiting for data) since the last lap; starts the next."""
        window, self._recent = self._recent, _Window(self._clock())
        seconds = self._recent.began - window.began - window.paused
        if seconds <= 0:
            return 0.0, 0.0
        return window.samples / seconds, min(1.0, window.waited / seconds)

    @property
    def samples_per_s(self) -> float:
        """Over this attempt's training so far."""
        seconds = self._clock() - self._whole.began - self._whole.paused
        return self._whole.samples / seconds if seconds > 0 else 0.0

    @property
    def wall_s(self) -> float:
        """Seconds since training began in this attempt, everything included."""
        return self._clock() - self._whole.began

    def _add(self, samples: int = 0, waited: float = 0.0, paused: float = 0.0) -> None:
        for window in (self._whole, self._recent):
            window.samples += samples
            window.waited += waited
            window.paused += paused
