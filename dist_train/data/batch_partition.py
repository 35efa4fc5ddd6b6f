"""Partition each optimizer step's batch over the ranks, and each rank's part into micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_train.distributed.smallest_batch import ReadEpoch
from dist_train.errors import ConfigError

Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]
# Positions permuted at once: enough to make numpy's cost per sample vanish, under a millisecond.
_CHUNK = 4096


@dataclass(frozen=True)
class MicroBatch:
    """One rank's micro-batch and its place in the optimizer step.

    `batch` holds `count` samples of this rank; with `count` 0 it holds one placeholder sample, which
    must have weight 0. The whole job's step has `step_count` samples; once it is applied,
    `samples_in_epoch` samples of the epoch are done.
    """

    batch: Any
    count: int
    step_count: int
    step: int
    micro: int
    micros: int
    samples_in_epoch: int


@dataclass(frozen=True)
class MicroBatchInfo:
    """A `MicroBatch` before its batch is read."""

    count: int
    step_count: int
    step: int
    micro: int
    samples_in_epoch: int

    def with_batch(self, batch: Any, micros: int) -> MicroBatch:
        """The same with the batch that was read, one of `micros` of its step."""
        return MicroBatch(
            batch, self.count, self.step_count, self.step, self.micro, micros, self.samples_in_epoch
        )


@dataclass(frozen=True)
class StepShape:
    """This rank's part of a step of a given size: offsets from the step's first position."""

    offsets: NDArray[np.int64]
    bounds: tuple[tuple[int, int], ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class BatchPartition:
    """The partition of an epoch.

    Position p belongs to step p // batch_size; there q = p % batch_size belongs to rank q % world_size.

    So a step has the same samples at every world size, and the ranks' parts differ by one at most.
    A rank's samples of a step are split into `micros` consecutive micro-batches, as many on all ranks.
    With `drop_last` a last step of fewer than `batch_size` samples is left out.
    """

    n: int
    batch_size: int
    rank: int
    world_size: int
    micros: int
    drop_last: bool = False

    @cached_property
    def steps(self) -> int:
        """Optimizer steps per epoch; the last may have fewer samples."""
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    @cached_property
    def samples(self) -> int:
        """Samples of the whole job in this epoch."""
        return self.samples_done(self.steps)

    @cached_property
    def smallest_step(self) -> int:
        """Samples of the whole job in the smallest step of the epoch."""
        return self.step_count(self.steps - 1)

    @property
    def smallest_micro_batch(self) -> int:
        """Samples in the smallest micro-batch of any rank in this epoch; a stand-in sample counts as 1."""
        return max(1, self.smallest_step // self.world_size // self.micros)

    def read_epoch(self) -> ReadEpoch:
        """Sizes that a model with BatchNorm is checked against."""
        parts = self.world_size * self.micros
        return ReadEpoch(self.smallest_micro_batch, self.smallest_step, self.batch_size, parts)

    def samples_done(self, steps: int) -> int:
        """Samples of the whole job in the first `steps` steps."""
        return min(steps * self.batch_size, self.n)

    def steps_done(self, samples: int) -> int | None:
        """The number of first steps that have these many samples; None inside a step."""
        if samples > self.n:
            return None
        if samples % self.batch_size and samples != self.n:
            return None
        return min(-(-samples // self.batch_size), self.steps)

    def step_count(self, step: int) -> int:
        """Samples of the whole job in this step."""
        return min(self.batch_size, self.n - step * self.batch_size)

    def micro_batches(self, first_step: int) -> Iterator[MicroBatchInfo]:
        """Every micro-batch of this rank from `first_step` to the end of the epoch."""
        for step in range(first_step, self.steps):
            step_count = self.step_count(step)
            done = self.samples_done(step + 1)
            for micro, count in enumerate(self._shape(step).counts):
                yield MicroBatchInfo(count, step_count, step, micro, done)

    def sample_ids(self, order: Order, first_step: int) -> Iterator[list[int]]:
        """The sample ids of the same micro-batches, in the same order."""
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

    def _shape(self, step: int) -> StepShape:
        return self._whole if self.step_count(step) == self.batch_size else self._tail

    @cached_property
    def _whole(self) -> StepShape:
        return self._shape_of(self.batch_size)

    @cached_property
    def _tail(self) -> StepShape:
        return self._shape_of(self.n % self.batch_size)

    def _shape_of(self, step_count: int) -> StepShape:
        mine = np.arange(self.rank, step_count, self.world_size, dtype=np.int64)
        parts = np.array_split(mine, self.micros)
        counts = tuple(len(part) for part in parts)
        # An empty part reads the step's first sample: every rank then runs forward and backward equally
        # often, which collectives inside the model need.
        parts = [part if len(part) else np.zeros(1, dtype=np.int64) for part in parts]
        ends = np.cumsum([len(part) for part in parts]).tolist()
        return StepShape(np.concatenate(parts), tuple(zip([0, *ends[:-1]], ends, strict=True)), counts)


def refuse_no_steps(partition: BatchPartition) -> None:
    """Refuse an epoch that drop_last makes empty.

    Raises:
        ConfigError: it has no step.
    """
    if partition.steps == 0:
        raise ConfigError(
            f"drop_last leaves nothing of {partition.n} samples with batch_size {partition.batch_size}",
            hint="a smaller batch_size, or drop_last=False",
        )
