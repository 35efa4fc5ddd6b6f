"""Iterable data sets: plain, sized, shuffled, and with a position of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Count(IterableDataset[int]):
    """0 .. n-1; divides itself over loader workers, as torch's documentation says."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        yield from range(self.n) if info is None else range(info.id, self.n, info.num_workers)


class Sized(Count):
    def __len__(self) -> int:
        return self.n


class Shuffled(IterableDataset[int]):
    """A shuffle buffer that draws from the global generators; another order in each epoch."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        buffer: list[int] = []
        for value in range(self.n):
            buffer.append(1000 * self.epoch + value)
            if len(buffer) > 5:
                yield buffer.pop(random.randrange(len(buffer)))
        while buffer:
            yield buffer.pop(int(torch.randint(len(buffer), ())))


class Stateful(IterableDataset[int]):
    """StatefulDataLoader's protocol: its position is its own; `read` counts what was read."""

    read = 0

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.n:
            self.at += 1
            Stateful.read += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Walk:
    """An iterator with a state of its own."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.at = 0
        self.skipped_to = 0

    def __next__(self) -> int:
        if self.at == self.n:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def __iter__(self) -> Walk:
        return self

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class WithIterator(IterableDataset[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return Walk(self.n)


class Sticky(Stateful):
    """As `datasets.IterableDataset`: its state is that of the newest iterator, and __iter__ begins again."""

    def __iter__(self) -> Iterator[int]:
        start, self.start = getattr(self, "start", 0), 0
        for self.at in range(start + 1, self.n + 1):  # noqa: B020
            yield self.at - 1

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]
