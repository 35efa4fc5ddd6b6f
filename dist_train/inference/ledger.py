"""Which batch is where: waiting, at a worker, done. Nothing is lost, nothing is given out twice."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dist_train.inference.failures import BatchFailed

# One being computed and one waiting, so that a worker never waits for the way of a batch.
AT_A_WORKER = 2
# A batch whose worker died so often is to blame itself.
DEATHS = 3


@dataclass
class Entry:
    """A batch on its way: its place in the order, its bytes, and how workers died over it."""

    index: int
    parcel: memoryview
    deaths: list[str] = field(default_factory=list)


class Ledger:
    """The book of one call of predict.

    Args:
        workers: how many there are.
    """

    def __init__(self, workers: int) -> None:
        self._waiting: list[tuple[int, Entry]] = []
        self._held: list[deque[Entry]] = [deque() for _ in range(workers)]
        self._done: dict[int, Any] = {}
        self._added = 0
        self._handed_out = 0
        # Results that wait for an earlier one are bounded too.
        self._window = 2 * AT_A_WORKER * workers

    @property
    def full(self) -> bool:
        """Whether no further batch may be taken from the caller now."""
        return self._added - self._handed_out >= self._window

    @property
    def settled(self) -> bool:
        """Whether every batch that was added has been handed out as a result."""
        return self._added == self._handed_out

    @property
    def next_index(self) -> int:
        """Of the batch that `add` takes next."""
        return self._added

    def add(self, parcel: memoryview) -> None:
        """Take a batch in, last in order."""
        heapq.heappush(self._waiting, (self._added, Entry(self._added, parcel)))
        self._added += 1

    def held(self, worker: int) -> int:
        """Batches that this worker has not answered."""
        return len(self._held[worker])

    @property
    def busy(self) -> bool:
        """Whether any worker has one."""
        return any(self._held)

    def give(self, worker: int) -> Entry | None:
        """The earliest waiting batch, now at this worker; None if none waits."""
        if not self._waiting:
            return None
        _, entry = heapq.heappop(self._waiting)
        self._held[worker].append(entry)
        return entry

    def finish(self, worker: int, index: int, result: Any) -> None:
        """A worker's answer; it answers in the order in which it was given."""
        entry = self._held[worker].popleft()
        assert entry.index == index, f"worker {worker} answered {index}, not {entry.index}"
        self._done[index] = result

    def drop(self, worker: int) -> int:
        """Forget the batch that a worker has answered with a failure; its index."""
        return self._held[worker].popleft().index

    def lose(self, worker: int, fate: str) -> None:
        """A dead worker's batches wait again; the one that it was at is blamed.

        Raises:
            BatchFailed: it has ended its third worker.
        """
        lost = self._held[worker]
        self._held[worker] = deque()
        for entry in lost:
            heapq.heappush(self._waiting, (entry.index, entry))
        if lost:
            lost[0].deaths.append(fate)
            _refuse_deadly(lost[0])

    def results(self) -> Iterator[Any]:
        """What is done and next in order."""
        while self._handed_out in self._done:
            result = self._done.pop(self._handed_out)
            self._handed_out += 1
            yield result


def _refuse_deadly(entry: Entry) -> None:
    if len(entry.deaths) < DEATHS:
        return
    killed = any("SIGKILL" in fate for fate in entry.deaths)
    raise BatchFailed(
        f"batch {entry.index} has ended {DEATHS} workers: {'; '.join(entry.deaths)}",
        index=entry.index,
        mend="signal 9 is often the kernel's out-of-memory killer (`dmesg`): smaller batches, fewer processes"
        if killed
        else f"compute batch {entry.index} alone in one process, under `python -X faulthandler`",
    )
