"""The partition of an epoch whose batches a batch sampler made: steps of any size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dist_train.data.batch_partition import BatchPartition, Order, StepShape


@dataclass(frozen=True)
class SampledBatches(BatchPartition):
    """The partition of an epoch into steps of the given sizes, over ranks and micro-batches as always.

    Args:
        sizes: samples of the whole job in each step, none of them 0; their sum is `n`.
    """

    sizes: NDArray[np.int64] = field(kw_only=True, compare=False)

    @cached_property
    def steps(self) -> int:
        """Optimizer steps of this epoch."""
        return len(self.sizes)

    @cached_property
    def smallest_step(self) -> int:
        """Samples of the whole job in the smallest step of the epoch."""
        return int(self.sizes.min())

    def step_count(self, step: int) -> int:
        """Samples of the whole job in this step."""
        return int(self.sizes[step])

    def samples_done(self, steps: int) -> int:
        """Samples of the whole job in the first `steps` steps."""
        return int(self._ends[steps])

    def steps_done(self, samples: int) -> int | None:
        """The number of first steps that have these many samples; None inside a step."""
        steps = int(np.searchsorted(self._ends, samples))
        return steps if steps < len(self._ends) and self._ends[steps] == samples else None

    def sample_ids(self, order: Order, first_step: int) -> Iterator[list[int]]:
        """The sample ids of this rank's micro-batches from `first_step` on."""
        for step in range(first_step, self.steps):
            shape = self._shape(step)
            ids: list[int] = order(self._ends[step] + shape.offsets).tolist()
            for low, high in shape.bounds:
                yield ids[low:high]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.sizes, dtype=np.int64)])

    @cached_property
    def _shapes(self) -> dict[int, StepShape]:
        return {}

    def _shape(self, step: int) -> StepShape:
        count = self.step_count(step)
        if count not in self._shapes:
            self._shapes[count] = self._shape_of(count)
        return self._shapes[count]
