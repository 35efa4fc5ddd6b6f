"""Who reads what: each rank's part of every optimizer step, split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]
# Positions permuted at once: enough to make numpy's cost per sample vanish, under a millisecond.
_CHUNK = 4096


@dataclass(frozen=True)
class Share:
    """One rank's micro-batch and its place in the optimizer step.

    `count` real samples of this rank are in `batch`; 0 means that the batch holds one real sample
    which must weigh nothing. `step_count` samples of the whole job make this step.
    `samples_in_epoch` are done once the step is applied.
    """

    batch: Any
    count: int
    step_count: int
    step: int
    micro: int
    micros: int
    samples_in_epoch: int


@dataclass(frozen=True)
class Facts:
    """A Share before its batch is read."""

    count: int
    step_count: int
    step: int
    micro: int
    samples_in_epoch: int


@dataclass(frozen=True)
class _Shape:
    """How this rank reads a step of a given size: offsets from the step's first position."""

    offsets: NDArray[np.int64]
    bounds: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class SharePlan:
    """The split of an epoch. Position p: step = p // batch_size, q = p % batch_size, rank = q % world_size.

    So the samples of a step are the same at every world size, and shares differ by one at most.
    A rank's samples of a step are cut into `micros` consecutive parts, the same number on all ranks.
    """

    n: int
    batch_size: int
    rank: int
    world_size: int
    micros: int

    @cached_property
    def steps(self) -> int:
        """Optimizer steps per epoch; the last may be smaller."""
        return -(-self.n // self.batch_size)

    def step_count(self, step: int) -> int:
        """Samples of the whole job in this step."""
        return min(self.batch_size, self.n - step * self.batch_size)

    def facts(self, first_step: int) -> Iterator[Facts]:
        """Every micro-batch of this rank from `first_step` to the end of the epoch."""
        for step in range(first_step, self.steps):
            step_count = self.step_count(step)
            done = step * self.batch_size + step_count
            for micro, count in enumerate(self._shape(step).counts):
                yield Facts(count, step_count, step, micro, done)

    def reads(self, order: Order, first_step: int) -> Iterator[list[int]]:
        """The sample ids of the same micro-batches, in the same sequence."""
        step = first_step
        while step < self.steps:
            shape = self._shape(step)
            stop = step + 1
            if shape is self._whole:
                stop = min(step + max(1, _CHUNK // len(shape.offsets)), self.n // self.batch_size)
            starts = np.arange(step, stop, dtype=np.int64) * self.batch_size
            positions = (starts[:, None] + shape.offsets[None, :]).reshape(-1)
            ids: list[int] = order(positions).tolist()
            for at in range(0, len(ids), len(shape.offsets)):
                for low, high in shape.bounds:
                    yield ids[at + low : at + high]
            step = stop

    def _shape(self, step: int) -> _Shape:
        return self._whole if self.step_count(step) == self.batch_size else self._tail

    @cached_property
    def _whole(self) -> _Shape:
        return self._shape_of(self.batch_size)

    @cached_property
    def _tail(self) -> _Shape:
        return self._shape_of(self.n % self.batch_size)

    def _shape_of(self, step_count: int) -> _Shape:
        mine = np.arange(self.rank, step_count, self.world_size, dtype=np.int64)
        parts = np.array_split(mine, self.micros)
        counts = tuple(len(part) for part in parts)
        # A part of nothing reads the step's first sample: every rank then runs forward and
        # backward equally often, which collectives inside the model need.
        parts = [part if len(part) else np.zeros(1, dtype=np.int64) for part in parts]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return _Shape(np.concatenate(parts), tuple(zip([0, *ends[:-1]], ends, strict=True)), counts)
