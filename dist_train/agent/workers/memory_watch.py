"""The last half minute of the kernel's counts of kills for memory, so that a rank's end can be explained."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from dist_train.jobs.memory_kills import MemoryKill, MemoryReading, kills_between, read_memory

# From the kill of a loader worker until its rank has raised the error and ended.
_WINDOW_S = 30.0
_READ_EVERY_S = 2.0


class MemoryWatch:
    """Readings since shortly before now, the oldest of them from before the attempt at the latest."""

    def __init__(
        self,
        read: Callable[[], MemoryReading] = read_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._clock = clock
        self._readings: deque[tuple[float, MemoryReading]] = deque([(clock(), read())])
        self._of_ranks: dict[int, MemoryKill | None] = {}

    @property
    def is_counted(self) -> bool:
        """Whether a kill of a rank here would be seen."""
        return self._readings[0][1].counts_own_kills

    def tick(self) -> None:
        """Read again, if it is time; leave out readings that are too old."""
        now = self._clock()
        if now - self._readings[-1][0] < _READ_EVERY_S:
            return
        self._readings.append((now, self._read()))
        while len(self._readings) > 1 and now - self._readings[1][0] > _WINDOW_S:
            self._readings.popleft()

    def kill_before_end_of(self, rank: int) -> MemoryKill | None:
        """What was killed for memory shortly before this rank ended; the first call decides."""
        if rank not in self._of_ranks:
            self._of_ranks[rank] = kills_between(self._readings[0][1], self._read())
        return self._of_ranks[rank]
