"""The divisor of the loss: units of the whole job in one optimizer step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dist_train.data.batch_partition import MicroBatch
from dist_train.distributed.control_group import Control
from dist_train.errors import ConfigError
from dist_train.trainer.task import Task


def units_vary(task: Task) -> bool:
    """Whether the units per sample differ from batch to batch, so that each batch is counted."""
    return bool(getattr(task, "units_vary", False))


class UnitCounter:
    """Counts a step's units equally on every rank, without a collective where the position gives them.

    With constant units per sample (images, fixed token windows) a step holds
    `step_count * units_per_sample`; that it is constant is checked on every batch. Only a task
    with `units_vary = True` needs a sum over the ranks, on the control group.

    Args:
        task: the task.
        control: all ranks.
        counts: this rank's units are added up; another one of the same data says False.
        sample: any batch with its number of samples: gives the constant, which all ranks compare.
    """

    def __init__(self, task: Task, control: Control, sample: MicroBatch, counts: bool = True) -> None:
        self._task = task
        self._control = control
        self._counts = counts
        self.varies = units_vary(task)
        self._per_sample = 0 if self.varies else self._agree_on_constant(sample)

    def of_step(self, micro_batches: Iterable[MicroBatch]) -> tuple[int, Iterator[MicroBatch]]:
        """Units of all ranks in the step of these micro-batches, and the micro-batches to train on.

        Collective if units vary; then all micro-batches are read first, otherwise one at a time.
        """
        if self.varies:
            held = list(micro_batches)
            local = float(sum(self.of_micro_batch(micro_batch) for micro_batch in held if self._counts))
            return self._not_empty(int(self._control.sum([local])[0]), held[0].step), iter(held)
        iterator = iter(micro_batches)
        box = [next(iterator)]
        self._check(box[0])
        total = self._not_empty(box[0].step_count * self._per_sample, box[0].step)
        return total, self._checked(box, iterator)

    def _checked(self, first: list[MicroBatch], rest: Iterator[MicroBatch]) -> Iterator[MicroBatch]:
        yield first.pop()  # no reference to it stays here
        for micro_batch in rest:
            self._check(micro_batch)
            yield micro_batch
            del micro_batch

    def of_micro_batch(self, micro_batch: MicroBatch) -> int:
        """Units of this rank's micro-batch; 0 where its sample has weight 0."""
        return self._task.units(micro_batch.batch) if micro_batch.count else 0

    def _agree_on_constant(self, sample: MicroBatch) -> int:
        units, samples = self._task.units(sample.batch), max(1, sample.count)
        constant = units // samples if units % samples == 0 else -1
        everywhere = self._control.all_gather(constant)
        if constant < 1 or any(other != constant for other in everywhere):
            raise varying_units(f"units per sample on each rank: {everywhere} (-1: not a whole number)")
        return constant

    def _check(self, micro_batch: MicroBatch) -> None:
        units, samples = self._task.units(micro_batch.batch), max(1, micro_batch.count)
        if units != samples * self._per_sample:
            raise varying_units(
                f"{units} units in a batch of {samples} samples, {self._per_sample} per sample before"
            )

    def _not_empty(self, total: int, step: int) -> int:
        if total < 1:
            raise ConfigError(
                f"step {step} of the epoch has {total} units: there is nothing to learn from",
                cause="the task counts no unit in any of its samples",
                hint="leave samples without a unit out of the data set",
            )
        return total


def varying_units(cause: str) -> ConfigError:
    """The error of a task whose units per sample are not constant, though `units_vary` is not set."""
    return ConfigError(
        "the task's units per sample differ from batch to batch",
        cause=cause,
        hint="set `units_vary = True` on the task: the ranks then add their units up before each step",
    )
