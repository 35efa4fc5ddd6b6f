"""The divisor of the loss: units of the whole job in one optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

from dist_train.data.shares import Share
from dist_train.distributed.control import Control
from dist_train.errors import ConfigError
from dist_train.trainer.task import Task


class UnitCounter:
    """Counts a step's units on every rank alike, without talking where the position tells them.

    With constant units per sample (images, fixed token windows) a step holds
    `step_count * units_per_sample`; that the constant is one is checked on every batch. Only a task
    with `units_vary = True` needs a sum over the ranks, on the control group.

    Args:
        task: the task.
        control: all ranks.
        sample: any batch with its number of samples: gives the constant, which all ranks compare.
    """

    def __init__(self, task: Task, control: Control, sample: Share) -> None:
        self._task = task
        self._control = control
        self.varies = bool(getattr(task, "units_vary", False))
        self._per_sample = 0 if self.varies else self._agree_on_constant(sample)

    def of_step(self, shares: Sequence[Share]) -> int:
        """Units of all ranks in the step that these micro-batches belong to; collective if they vary."""
        if self.varies:
            local = float(sum(self.of_share(share) for share in shares))
            total = int(self._control.sum([local])[0])
        else:
            for share in shares:
                self._check(share)
            total = shares[0].step_count * self._per_sample
        return self._not_empty(total, shares[0].step)

    def of_share(self, share: Share) -> int:
        """Units of this rank's micro-batch; 0 where its sample weighs nothing."""
        return self._task.units(share.batch) if share.count else 0

    def _agree_on_constant(self, sample: Share) -> int:
        units, samples = self._task.units(sample.batch), max(1, sample.count)
        constant = units // samples if units % samples == 0 else -1
        everywhere = self._control.all_gather(constant)
        if constant < 1 or any(other != constant for other in everywhere):
            raise varying_units(f"units per sample on each rank: {everywhere} (-1: not a whole number)")
        return constant

    def _check(self, share: Share) -> None:
        units, samples = self._task.units(share.batch), max(1, share.count)
        if units != samples * self._per_sample:
            raise varying_units(
                f"{units} units in a batch of {samples} samples, {self._per_sample} per sample before"
            )

    def _not_empty(self, total: int, step: int) -> int:
        if total < 1:
            raise ConfigError(
                f"step {step} of the epoch has {total} units: there is nothing to learn from",
                cause="the task counts no unit in any of its samples",
                mend="leave samples without a unit out of the data set",
            )
        return total


def varying_units(cause: str) -> ConfigError:
    """The error of a task whose units per sample are not constant, though it says so."""
    return ConfigError(
        "the task's units per sample differ from batch to batch",
        cause=cause,
        mend="set `units_vary = True` on the task: the ranks then add their units up before each step",
    )
