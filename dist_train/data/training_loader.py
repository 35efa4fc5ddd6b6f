"""What every loader that trains is: a position, plain batches, micro-batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from dist_train.data.batch_partition import MicroBatch
from dist_train.data.gradients_disabled import GradientsDisabled
from dist_train.data.left_early import LeftEarly
from dist_train.data.paired_loaders import OrderInUse
from dist_train.data.validation import check_count
from dist_train.distributed.gradient_weights.batch_weight import BatchWeight, BatchWeightSlot
from dist_train.errors import UsageError
from dist_train.rundir.times.span_clock import DATA_WAIT, span_clock


class TrainingLoader(ABC):
    """Base of the loaders with a position; its subclass reads.

    Args:
        accumulate: micro-batches per optimizer step and rank.
        batch_weight: set for each batch of a plain loop.
        is_main: whether this rank says what only one needs to say.
    """

    def __init__(self, accumulate: int, batch_weight: BatchWeight | None, is_main: bool) -> None:
        self.accumulate = check_count("accumulate", accumulate, 1)
        self.batch_weight = batch_weight
        self._epoch = 0
        self._step = 0
        self._samples_before = 0
        self._step_complete = True
        self._iteration = object()
        self._slot: BatchWeightSlot | None = None
        self._unit_slot: BatchWeightSlot | None = None
        self._order_in_use: OrderInUse | None = None
        self._left_early = LeftEarly(is_main)
        self._gradients = GradientsDisabled()

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """Optimizer steps of this epoch; TypeError where the data has no length."""

    @property
    @abstractmethod
    def samples_per_epoch(self) -> int:
        """Samples of this epoch over all ranks."""

    @property
    @abstractmethod
    def samples_in_epoch(self) -> int:
        """Samples of this epoch that the whole job has trained on, the current step's included."""

    @abstractmethod
    def _read_micro_batches(self) -> Iterator[MicroBatch]:
        """As `micro_batches`."""

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Iterate over this rank's micro-batches of the rest of the epoch.

        The position advances when the last micro-batch of a step is handed out. The loop weights its losses
        itself: `run.backward(loss_sum, units=micro_batch.count)`. A plain `loss.backward()` is refused where
        a step's micro-batches have unlike sizes; where they are equal it adds up the means.
        """
        if self.batch_weight is None:
            return self._read_micro_batches()
        return self._noted_micro_batches(self.batch_weight.open(self.accumulate))

    @abstractmethod
    def close(self) -> None:
        """End the workers that wait for the next epoch; the next iteration starts new ones."""

    def __len__(self) -> int:
        """Batches of a whole epoch in a plain loop: `steps_per_epoch * accumulate`, as many on all ranks."""
        return self.steps_per_epoch * self.accumulate

    def __iter__(self) -> Iterator[Any]:
        return self._plain_batches()

    @property
    def epoch(self) -> int:
        """The epoch being read, from 0."""
        return self._epoch

    @property
    def step(self) -> int:
        """Optimizer steps of this epoch handed out, the current one included."""
        return self._step

    @property
    def step_complete(self) -> bool:
        """Whether the current batch is the last micro-batch of its optimizer step: step the optimizer."""
        return self._step_complete

    def _refuse_position_ahead(self) -> None:
        """Raise UsageError where a plain loop has read batches ahead of the one that it trains on."""
        if self._slot is not None:
            self._slot.refuse_position()

    def _refuse_other_iteration(self, iteration: object) -> None:
        """Raise UsageError where another iteration or a seek began since this one did."""
        if self._iteration is not iteration:
            raise UsageError(
                "an iterator of this loader was used after another iteration or a seek began",
                cause="one position cannot follow two iterations: samples would be repeated",
                hint="make one loader for each loop",
            )

    def _noted_micro_batches(self, slot: BatchWeightSlot) -> Iterator[MicroBatch]:
        if self._unit_slot is not None:
            self._unit_slot.drop()
        self._unit_slot = slot
        micro_batches = self._read_micro_batches()
        try:
            for micro_batch in micro_batches:
                slot.set(micro_batch.count, micro_batch.step_count, micro_batch.batch)
                yield micro_batch
        finally:
            micro_batches.close()  # type: ignore[attr-defined]
            slot.close()

    def _plain_batches(self) -> Iterator[Any]:
        if self._slot is not None:
            self._slot.drop()
        slot = self._slot = None if self.batch_weight is None else self.batch_weight.open()
        micro_batches = self._read_micro_batches()
        times = span_clock()
        times.switch(DATA_WAIT)
        try:
            for micro_batch in micro_batches:
                self._gradients.warn_once()
                if self._order_in_use is not None:
                    self._order_in_use.hand_out(self._epoch, micro_batch.step)
                if slot is not None:
                    slot.set(micro_batch.count, micro_batch.step_count, micro_batch.batch)
                times.end_wait(DATA_WAIT)
                yield micro_batch.batch
                times.switch(DATA_WAIT)
        except GeneratorExit:
            self._left_early.warn_once(slot)
            raise
        finally:
            times.end_wait(DATA_WAIT)
            # A loop that breaks early closes this generator; the inner one owns the workers.
            micro_batches.close()  # type: ignore[attr-defined]
            if self._order_in_use is not None:
                self._order_in_use.close()
            if slot is not None:
                slot.close()
