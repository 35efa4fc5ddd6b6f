"""The clock of this process: it counts its time for one part after the other, in memory that outlives it.

Each of the first ranks of an attempt has one (its agent's environment says so); elsewhere the calls do
nothing. A change of part reads the clock once and stores five numbers. It never waits for a GPU: there a part
ends when the host goes on, and what the device still computes counts for what the host waits in later.
"""

from __future__ import annotations

import functools
import os
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import ParamSpec, TypeVar

from dist_train.rundir.times import clock_file as layout

P = ParamSpec("P")
T = TypeVar("T")
_NUMBER = {name: number for number, name in enumerate(layout.CLOCK_PARTS)}
START, IMPORT, MEMBERSHIP, RESTORE = (_NUMBER[n] for n in ("start", "import", "membership", "restore"))
DATA_WAIT, COMPUTE, COMMUNICATION = (_NUMBER[n] for n in ("data_wait", "compute", "communication"))
EVALUATION, SAVE_STALL, STOPPING = (_NUMBER[n] for n in ("evaluation", "save_stall", "stopping"))
IDLE, SCRIPT, BODY, SET_UP = (_NUMBER[n] for n in ("idle", "script", "body", "set_up"))
_NO_THREAD = -1
# Called in every step: looked up once.
_SINCE, _PART, _SUMS = layout.SINCE, layout.PART, layout.SUMS


class SpanClock:
    """Counts the time of one thread by part.

    Args:
        numbers: a clock file's, or an array of the same size.
        thread: whose calls count; others, as those of forked children, do nothing.
    """

    def __init__(
        self,
        numbers: memoryview[float] | array[float],
        thread: int,
        part: int = SCRIPT,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._numbers = numbers
        self._thread = thread
        self._clock = clock
        self._part = part
        self._since = clock()
        self._held = 0
        numbers[layout.PART] = part
        numbers[layout.WALL] = time.time()
        numbers[layout.SINCE] = numbers[layout.ALIVE] = self._since
        numbers[layout.MONOTONIC] = self._since  # last: from now on the file is readable

    @property
    def counts(self) -> bool:
        """Whether the calling thread's time is counted."""
        return get_ident() == self._thread

    @property
    def part(self) -> int:
        """What the time counts for now."""
        return self._part

    def switch(self, part: int) -> None:
        """Count for `part` from now on, except within `whole`, all of which is one part."""
        if self._held or get_ident() != self._thread:
            return
        now = self._clock()
        numbers = self._numbers
        # A kill between these lines loses a span of the sums; none is counted twice.
        numbers[_SINCE] = now
        numbers[_SUMS + self._part] += now - self._since
        numbers[_PART] = part
        self._since = now
        self._part = part

    def end_wait(self, waiting: int) -> None:
        """Count for compute again if the time counts for `waiting`."""
        if self._part == waiting:
            self.switch(COMPUTE)

    def whole(self, part: int) -> _Whole:
        """A context that counts for `part` as a whole, whatever is called in it."""
        return _Whole(self, part)

    def know(self, part: int) -> None:
        """Say that this part is measured here, so that no second of it means none."""
        if self._thread != _NO_THREAD:
            self._numbers[layout.KNOWN] = int(self._numbers[layout.KNOWN]) | 1 << part

    def restored(self, step: int | None) -> None:
        """A checkpoint was looked for: `step` was loaded, or none was there. The first time counts."""
        if self.counts and self._numbers[layout.RESUMED] == layout.NOT_RESTORED:
            self._numbers[layout.RESUMED] = layout.FROM_THE_BEGINNING if step is None else step

    def sums(self) -> tuple[float, ...]:
        """What was counted until now, by part; empty where the calling thread's time is not counted."""
        if not self.counts:
            return ()
        self._count_until_now()
        return tuple(self._numbers[layout.SUMS + number] for number in range(len(layout.CLOCK_PARTS)))

    def committed(self, step: int, sums: tuple[float, ...] | None = None) -> None:
        """What was counted up to `sums` is in the checkpoint of `step`: a restart does not repeat it.

        Args:
            step: of the checkpoint.
            sums: what `sums` returned when its state was copied; then any thread may call. None: as of now.
        """
        sums = self.sums() if sums is None else sums
        if not sums or self._thread == _NO_THREAD:
            return
        numbers = self._numbers
        count = int(numbers[layout.COMMITS])
        place = layout.RING + count % layout.KEPT_COMMITS * layout.COMMIT_SIZE
        numbers[place] = step
        for number, seconds in enumerate(sums):
            numbers[place + 1 + number] = seconds
        numbers[layout.COMMITS] = count + 1

    def beat(self) -> None:
        """Note that the process is alive; of any thread."""
        if self._thread != _NO_THREAD:
            self._numbers[layout.ALIVE] = self._clock()

    def leave(self) -> None:
        """Count nothing any more: this is a forked child."""
        self._thread = _NO_THREAD

    def _count_until_now(self) -> None:
        held, self._held = self._held, 0
        self.switch(self._part)
        self._held = held

    def _hold(self, part: int) -> int:
        before = self._part
        if not self._held:
            self.switch(part)
        self._held += 1
        return before

    def _release(self, before: int) -> None:
        self._held -= 1
        self.switch(before)  # nothing, as long as it is held


class _Whole:
    def __init__(self, clock: SpanClock, part: int) -> None:
        self._span_clock = clock
        self._of = part
        self._before: int | None = None

    def __enter__(self) -> None:
        if self._span_clock.counts:
            self._before = self._span_clock._hold(self._of)

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            self._span_clock._release(self._before)
            self._before = None


# Counts nothing.
NO_CLOCK = SpanClock(array("d", bytes(8 * layout.SIZE)), _NO_THREAD)
_current = NO_CLOCK


def span_clock() -> SpanClock:
    """The clock of this process; one that counts nothing where there is none."""
    return _current


def start_clock(path: Path) -> SpanClock:
    """Start the clock of this process, for the calling thread; it writes into a new file.

    Raises:
        OSError: the file cannot be made.
    """
    global _current
    numbers = layout.create_clock_file(path)
    _current = SpanClock(numbers, get_ident())
    os.register_at_fork(after_in_child=_current.leave)
    return _current


def counted_as(part: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function all of whose time counts for one part."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def counted(*args: P.args, **kwargs: P.kwargs) -> T:
            with _current.whole(part):
                return function(*args, **kwargs)

        return counted

    return decorate
