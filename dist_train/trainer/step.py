"""One optimizer step: forward and backward of every micro-batch, one reduction, clip, update."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from dist_train.data.shares import Share
from dist_train.distributed.transfer import to_device
from dist_train.strategies.base import Strategy
from dist_train.trainer.tally import Tally
from dist_train.trainer.task import LossOutput, Task
from dist_train.trainer.units import UnitCounter


class Forward:
    """The task's loss on one micro-batch, on this rank's device, in the run's precision.

    Args:
        model: the wrapped model.
        precision: fp32, or bf16 by autocast of the forward pass (weights and reductions stay as they are).
    """

    def __init__(self, model: nn.Module, task: Task, precision: str, device: torch.device) -> None:
        self.model = model
        self.task = task
        self._precision = precision
        self._device = device

    def __call__(self, share: Share) -> LossOutput:
        """Sum over the units of the micro-batch, whatever they weigh."""
        batch = to_device(share.batch, self._device)
        with self._autocast():
            return self.task.loss(self.model, batch)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)


class Stepper:
    """Applies optimizer steps to a wrapped model.

    Strategies average gradients over the W ranks with equal weight, so each micro-batch contributes
    `total * W / step_units`: the result is the mean over the step's units of the whole job, whatever
    each rank's share of it.

    Args:
        forward: the wrapped model with its task.
        strategy: its strategy: `no_sync` and `clip_norm`.
        schedule: stepped once per optimizer step, or None.
        units: the step's divisor.
        clip_norm: largest gradient norm, or None.
    """

    def __init__(
        self,
        forward: Forward,
        strategy: Strategy,
        optimizer: Optimizer,
        schedule: Any | None,
        units: UnitCounter,
        world_size: int,
        clip_norm: float | None = None,
    ) -> None:
        self.forward = forward
        self.strategy = strategy
        self._optimizer = optimizer
        self._schedule = schedule
        self._units = units
        self._world_size = world_size
        self._clip_norm = clip_norm

    @property
    def learning_rate(self) -> float:
        """Of the first parameter group, as the next step will use it."""
        return float(self._optimizer.param_groups[0]["lr"])

    def run(self, shares: Sequence[Share], tally: Tally | None = None) -> None:
        """One optimizer step over the micro-batches of one step; their sums go to `tally`."""
        model = self.forward.model
        step_units = self._units.of_step(shares)
        self._optimizer.zero_grad(set_to_none=True)
        for share in shares:
            last = share.micro == share.micros - 1
            with nullcontext() if last else self.strategy.no_sync(model):
                self._micro_batch(share, step_units, tally)
        if self._clip_norm is not None:
            self.strategy.clip_norm(model, self._clip_norm)
        self._optimizer.step()
        if self._schedule is not None:
            self._schedule.step()

    def _micro_batch(self, share: Share, step_units: int, tally: Tally | None) -> None:
        output = self.forward(share)
        # A share of nothing takes part with weight 0, so that every rank runs the same collectives.
        total = output.total if share.count else output.total * 0
        # total * W / step_units, as one operation.
        torch.autograd.backward([total / (step_units / self._world_size)])
        if tally is not None:
            tally.add(output, self._units.of_share(share), counts=share.count > 0)
