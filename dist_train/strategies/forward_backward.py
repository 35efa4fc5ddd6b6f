"""dt.forward_backward: all forward and backward passes of one optimizer step, whatever the strategy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dist_train.distributed.run import current
from dist_train.distributed.transfer import to_device
from dist_train.errors import UsageError
from dist_train.strategies.base import runs_steps
from dist_train.strategies.prepared_models import strategy_of
from dist_train.strategies.stages.pipeline_module import once_per_stage

LossSum = Callable[[nn.Module, Any], Tensor]


def forward_backward(
    model: nn.Module, batches: Sequence[Any], loss_sum: LossSum, units: Sequence[int]
) -> float:
    """Run the forward and backward passes of one optimizer step over its micro-batches; return the mean loss.

    Afterwards `.grad` is the gradient of the mean over all units of all ranks, as with `run.backward`.
    Collective. With the strategy `pipeline` it is the only way to train: there the last stage alone has a
    loss. The other strategies do the same one batch after the other.

        batches = [micro.batch for micro in step]
        loss = dt.forward_backward(model, batches, loss_sum, [micro.count for micro in step])
        optimizer.step()

    Args:
        model: what dt.prepare has returned.
        batches: of this rank's share of the data, equally many on all ranks.
        loss_sum: calls the model once on a batch, and returns the SUM of the loss over the batch's units.
            (Its code before that call runs on every stage, the code after it on the last one.)
        units: samples or tokens of each batch, 0 for a placeholder.

    Raises:
        UsageError: no step has units; for a pipeline fewer batches than stages, or a loss that calls the
            model more than once, or not at all.
    """
    strategy, run = strategy_of(model, "dt.forward_backward"), current()
    if run is None or len(batches) != len(units) or not batches:
        raise UsageError(
            f"dt.forward_backward: {len(batches)} batches and {len(units)} numbers of units",
            hint="one number for each batch, inside of a run",
        )
    work = _Work(model, loss_sum)
    if runs_steps(strategy):
        run.batch_weight.refuse_counted_placeholders(units)
        total = run.control.sum([float(sum(units)) if run.place.counts else 0.0])[0]
        if not total:
            raise UsageError(
                "dt.forward_backward: no rank has a unit in this step",
                hint="leave the step out: there is nothing to learn from",
            )
        work.scale = run.place.data_size / total
        moved = [(to_device(batch, run.device), count) for batch, count in zip(batches, units, strict=True)]
        strategy.run_step(model, moved, work)
        for _ in batches:  # where gradients are weighted, each backward pass says it by itself
            run.batch_weight.backward_seen()
    else:
        for batch, count in zip(batches, units, strict=True):
            loss = loss_sum(model, to_device(batch, run.device))
            work.add(loss, count)
            run.backward(loss, units=count)
    return run.mean(work.total.to(run.device), count=sum(units))


class _Work:
    """One step's passes, and the sum of their losses."""

    def __init__(self, model: nn.Module, loss_sum: LossSum) -> None:
        self._model, self._loss_sum = model, loss_sum
        self.scale = 1.0
        self.total = torch.zeros((), dtype=torch.float64)

    def add(self, loss: Tensor, units: int) -> None:
        if units:
            self.total = self.total.to(loss.device) + loss.detach().double().reshape(())

    def loss(self, batch: tuple[Any, int]) -> Tensor:
        """The part of the mean that a batch adds."""
        value, units = batch
        loss = once_per_stage(self._model, lambda: self._loss_sum(self._model, value))
        if loss is None:
            return torch.zeros(())
        if not loss.is_meta:
            self.add(loss, units)
        return loss * (self.scale if units else 0.0)

    def backward(self, loss: Tensor) -> None:
        """From what `loss` has returned."""
        torch.autograd.backward([loss])
