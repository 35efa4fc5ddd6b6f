"""Training speed, and the fraction of the time spent waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dist_train.rundir.times.span_clock import COMPUTE, DATA_WAIT, NO_CLOCK, span_clock

T = TypeVar("T")
Clock = Callable[[], float]


@dataclass(frozen=True)
class Interval:
    """Speed over one interval of training.

    Args:
        samples_per_s: of the whole job.
        data_wait: fraction of the time that this rank waited for data, 0 to 1.
        step_s: seconds per optimizer step.
        data_s: of these, seconds waiting for data.
        steps: optimizer steps.
    """

    samples_per_s: float
    data_wait: float
    step_s: float
    data_s: float
    steps: int

    @property
    def compute_s(self) -> float:
        """Seconds per step of everything else."""
        return self.step_s - self.data_s


@dataclass
class _Window:
    """Counts since a point in time, with the seconds to leave out (evaluations, saves)."""

    began: float
    steps: int = 0
    samples: int = 0
    waited: float = 0.0
    paused: float = 0.0

    def interval(self, now: float) -> Interval:
        """The speed up to now."""
        seconds = now - self.began - self.paused
        if seconds <= 0 or not self.steps:
            return Interval(0.0, 0.0, 0.0, 0.0, self.steps)
        waited = min(seconds, self.waited)
        steps = self.steps
        return Interval(self.samples / seconds, waited / seconds, seconds / steps, waited / steps, steps)


class Pace:
    """Speed, and the fraction of time spent waiting for data, over training alone."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._whole = _Window(clock())
        self._recent = _Window(clock())

    def waiting(self, items: Iterable[T], read: bool = True) -> Iterator[T]:
        """The same items; the time waited for each is counted.

        Args:
            read: they are read now. False: they are there, and the run's clock need not look.
        """
        iterator, times = iter(items), span_clock() if read else NO_CLOCK
        while True:
            began = self._clock()
            times.switch(DATA_WAIT)
            try:
                item = next(iterator)
            except StopIteration:
                times.end_wait(DATA_WAIT)
                return
            times.switch(COMPUTE)
            self._add(waited=self._clock() - began)
            yield item

    def count(self, samples: int) -> None:
        """One optimizer step over `samples` of the whole job is done."""
        self._add(steps=1, samples=samples)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside out: it is not training."""
        began = self._clock()
        try:
            yield
        finally:
            self._add(paused=self._clock() - began)

    def next_interval(self) -> Interval:
        """Since the last call; starts the next."""
        now = self._clock()
        window, self._recent = self._recent, _Window(now)
        return window.interval(now)

    @property
    def whole(self) -> Interval:
        """This attempt's training so far."""
        return self._whole.interval(self._clock())

    @property
    def samples_per_s(self) -> float:
        """Over this attempt's training so far."""
        return self.whole.samples_per_s

    @property
    def wall_s(self) -> float:
        """Seconds since training began in this attempt, everything included."""
        return self._clock() - self._whole.began

    def _add(self, steps: int = 0, samples: int = 0, waited: float = 0.0, paused: float = 0.0) -> None:
        for window in (self._whole, self._recent):
            window.steps += steps
            window.samples += samples
            window.waited += waited
            window.paused += paused
