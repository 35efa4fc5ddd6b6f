"""Track each batch: waiting, at a worker, done. None is lost, no result is returned twice."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dist_train.inference.prediction_errors import BatchFailed

# One being computed and one waiting, so that a worker never waits for the transfer of a batch.
BATCHES_PER_WORKER = 2
# After so many dead workers the batch itself is the cause.
MAX_DEATHS = 3


@dataclass
class Entry:
    """A batch in the queue: its index, its bytes, and the exits of the workers that died computing it."""

    index: int
    payload: memoryview
    deaths: list[str] = field(default_factory=list)


class BatchQueue:
    """The batches of one call of predict.

    Args:
        workers: their number.
    """

    def __init__(self, workers: int) -> None:
        self._waiting: list[tuple[int, Entry]] = []
        self._held: list[deque[Entry]] = [deque() for _ in range(workers)]
        self._done: dict[int, Any] = {}
        self._added = 0
        self._returned = 0
        # Results that wait for an earlier one are bounded too.
        self._window = 2 * BATCHES_PER_WORKER * workers

    @property
    def full(self) -> bool:
        """Whether no further batch may be taken from the caller now."""
        return self._added - self._returned >= self._window

    @property
    def settled(self) -> bool:
        """Whether the result of every batch has been returned."""
        return self._added == self._returned

    @property
    def next_index(self) -> int:
        """The index of the batch that is added next."""
        return self._added

    def add(self, payload: memoryview) -> None:
        """Add a batch, the last in order."""
        heapq.heappush(self._waiting, (self._added, Entry(self._added, payload)))
        self._added += 1

    def held(self, worker: int) -> int:
        """Count the batches that this worker has not answered."""
        return len(self._held[worker])

    @property
    def busy(self) -> bool:
        """Whether any worker has a batch."""
        return any(self._held)

    def assign(self, worker: int) -> Entry | None:
        """Assign the earliest waiting batch to this worker; None if none waits."""
        if not self._waiting:
            return None
        _, entry = heapq.heappop(self._waiting)
        self._held[worker].append(entry)
        return entry

    def finish(self, worker: int, index: int, result: Any) -> None:
        """Store a worker's result; a worker answers in the order of its batches."""
        entry = self._held[worker].popleft()
        assert entry.index == index, f"worker {worker} answered {index}, not {entry.index}"
        self._done[index] = result

    def drop(self, worker: int) -> int:
        """Remove the batch that a worker has answered with a failure; return its index."""
        return self._held[worker].popleft().index

    def requeue(self, worker: int, exit_description: str) -> None:
        """Queue a dead worker's batches again; note its exit for the one that it was computing.

        Raises:
            BatchFailed: this batch has ended its third worker.
        """
        lost = self._held[worker]
        self._held[worker] = deque()
        for entry in lost:
            heapq.heappush(self._waiting, (entry.index, entry))
        if lost:
            lost[0].deaths.append(exit_description)
            _refuse_fatal(lost[0])

    def results(self) -> Iterator[Any]:
        """Yield the results that are done and next in order."""
        while self._returned in self._done:
            result = self._done.pop(self._returned)
            self._returned += 1
            yield result


def _refuse_fatal(entry: Entry) -> None:
    if len(entry.deaths) < MAX_DEATHS:
        return
    killed = any("SIGKILL" in death for death in entry.deaths)
    raise BatchFailed(
        f"batch {entry.index} has ended {MAX_DEATHS} workers: {'; '.join(entry.deaths)}",
        index=entry.index,
        hint="signal 9 is often the kernel's out-of-memory killer (`dmesg`): smaller batches, fewer processes"
        if killed
        else f"compute batch {entry.index} alone in one process, under `python -X faulthandler`",
    )
