"""One optimizer step: forward and backward of every micro-batch, one reduction, clip, update."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from dist_train.data.batch_partition import MicroBatch
from dist_train.distributed.finite_numbers import gradient_number, on_one_rank
from dist_train.distributed.pytree import map_tensors
from dist_train.distributed.transfer import to_device
from dist_train.rundir.times.span_clock import COMMUNICATION, span_clock
from dist_train.strategies.base import Strategy, runs_steps
from dist_train.strategies.stages.pipeline_module import once_per_stage
from dist_train.trainer.finite_update import (
    FiniteUpdate,
    StepNumbers,
    start_gradient,
)
from dist_train.trainer.half_precision.loss_scaler import LossScaler
from dist_train.trainer.half_precision.scaled_update import ScaledUpdate
from dist_train.trainer.loss_normalizer import UnitCounter
from dist_train.trainer.records.metric_sums import MetricSums
from dist_train.trainer.schedules import step_with_metric
from dist_train.trainer.task import LossOutput, Task

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Forward:
    """The task's loss on one micro-batch, on this rank's device, in the run's precision.

    Args:
        model: the wrapped model.
        precision: fp32, or bf16 or fp16 by autocast of the forward pass (weights and reductions stay as they
            are).
        channels_last: give tensors of four dimensions in NHWC order.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        precision: str,
        device: torch.device,
        channels_last: bool = False,
    ) -> None:
        self._channels_last = channels_last
        self.model = model
        self.task = task
        self._precision = precision
        self._device = device

    def __call__(self, micro_batch: MicroBatch) -> LossOutput:
        """Sum over the units of the micro-batch; its weight is not applied."""
        batch = to_device(micro_batch.batch, self._device)
        if self._channels_last:
            batch = map_tensors(batch, _nhwc)
        with self._autocast():
            output = once_per_stage(self.model, lambda: self.task.loss(self.model, batch))
        # A stage of a pipeline that is not the last knows no loss; nor does its place count one.
        return LossOutput(torch.zeros((), device=self._device)) if output is None else output

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._precision == "fp32":
            return nullcontext()
        return torch.autocast(self._device.type, dtype=AUTOCAST[self._precision])


def _nhwc(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


_TORCHS_ZERO_GRAD = Optimizer.zero_grad


def clear_gradients(optimizer: Optimizer) -> None:
    """`zero_grad(set_to_none=True)`; torch's own takes some 40 us, much of it for a mark in traces."""
    own = optimizer.zero_grad
    if getattr(own, "__func__", None) is _TORCHS_ZERO_GRAD and not torch._C._autograd._profiler_enabled():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
    else:
        own(set_to_none=True)


class Stepper:
    """Applies optimizer steps to a wrapped model.

    Strategies average gradients over the W shares of the data with equal weight, so each micro-batch
    contributes `total * W / step_units`: the result is the mean over the step's units of the whole job, also
    where ranks hold unequal numbers of them.

    Args:
        forward: the wrapped model with its task.
        strategy: its strategy: `no_sync` and `clip_norm`.
        schedule: stepped once per optimizer step, or with a metric after each evaluation; or None.
        units: the step's divisor.
        data_size: W, the number of shares that the data is split into.
        clip_norm: largest gradient norm, or None.
        skips: leave out the update of a step whose loss or gradient is not finite.
        scaler: of the loss, for fp16.
        is_main: this rank says what the scaler leaves out.
    """

    def __init__(
        self,
        forward: Forward,
        strategy: Strategy,
        optimizer: Optimizer,
        schedule: Any | None,
        units: UnitCounter,
        data_size: int,
        clip_norm: float | None = None,
        skips: bool = False,
        scaler: LossScaler | None = None,
        is_main: bool = True,
    ) -> None:
        self.forward = forward
        self.strategy = strategy
        self._optimizer = optimizer
        self._schedule = schedule
        self._units = units
        self._data_size = data_size
        self._clip_norm = clip_norm
        self._finite = FiniteUpdate(forward.model, optimizer) if skips else None
        self.scaler = scaler
        self._scaled = None if scaler is None else ScaledUpdate(scaler, optimizer, self._finite, is_main)

    @property
    def learning_rate(self) -> float:
        """Of the first parameter group, as the next step will use it."""
        return float(self._optimizer.param_groups[0]["lr"])

    @property
    def loss_scale(self) -> tuple[float, int] | None:
        """In fp16 the scale, and how many updates it has left out so far."""
        return None if self.scaler is None else (self.scaler.factor, self.scaler.skipped)

    def run(self, micro_batches: Iterable[MicroBatch], metric_sums: MetricSums | None = None) -> StepNumbers:
        """One optimizer step over the micro-batches of one step; their sums go to `metric_sums`."""
        model = self.forward.model
        step_units, micro_batches = self._units.of_step(micro_batches)
        clear_gradients(self._optimizer)
        if self._finite is not None:
            self._finite.begin()
        passes = _Passes(self.forward, self._units, step_units / self._data_size, metric_sums, self._start)
        if runs_steps(self.strategy):
            self.strategy.run_step(model, list(micro_batches), passes)
        else:
            for micro_batch in micro_batches:
                last = micro_batch.micro == micro_batch.micros - 1
                with nullcontext() if last else self.strategy.no_sync(model):
                    passes.backward(passes.loss(micro_batch))
                del micro_batch  # before the next is read: its batch may be on the GPU
        norm = self._update(model, passes.losses)
        self._step_schedule()
        return StepNumbers(tuple(passes.losses), norm)

    def _update(self, model: nn.Module, losses: Sequence[Tensor]) -> Tensor:
        if self._scaled is not None:
            return self._scaled.apply(losses, lambda: self._norm(model))
        norm = self._norm(model)
        if self._finite is not None:
            self._finite.apply(norm)
        else:
            self._optimizer.step()
        return norm

    def leave_out(self, micro_batches: Iterable[MicroBatch]) -> StepNumbers:
        """Read the step's micro-batches without training on them; the learning rate goes on."""
        for _ in micro_batches:
            pass
        self._step_schedule()
        return StepNumbers((), torch.zeros(()))

    def evaluated(self, figures: Mapping[str, float]) -> None:
        """Step a schedule that follows a metric of the evaluation."""
        if isinstance(self._schedule, ReduceLROnPlateau):
            step_with_metric(self._schedule, figures)

    def _step_schedule(self) -> None:
        if self._schedule is not None and not isinstance(self._schedule, ReduceLROnPlateau):
            self._schedule.step()

    def _start(self, mean: Tensor) -> list[Tensor] | None:
        if self._scaled is not None:
            return [self._scaled.start(mean)]
        return None if self._finite is None else [start_gradient(mean)]

    def _norm(self, model: nn.Module) -> Tensor:
        if self._clip_norm is None:
            if runs_steps(self.strategy):
                return self.strategy.gradient_norm(model)
            # The optimizer knows its parameters at once; a walk through the modules takes 1 us per parameter.
            return gradient_number(p for group in self._optimizer.param_groups for p in group["params"])
        return on_one_rank(self.strategy.clip_norm(model, self._clip_norm))


class _Passes:
    """The forward and backward passes of one step; keeps the losses of its micro-batches.

    Args:
        divisor: what each loss is divided by, step_units / W.
        start: the gradient with which a backward pass begins; None: 1.
    """

    def __init__(
        self,
        forward: Forward,
        units: UnitCounter,
        divisor: float,
        metric_sums: MetricSums | None,
        start: Callable[[Tensor], list[Tensor] | None],
    ) -> None:
        self._forward, self._units, self._divisor = forward, units, divisor
        self._metric_sums, self._start = metric_sums, start
        self.losses: list[Tensor] = []

    def loss(self, micro_batch: MicroBatch) -> Tensor:
        """The forward pass; returns total * W / step_units."""
        output = self._forward(micro_batch)
        # An empty micro-batch takes part with weight 0, so that every rank runs the same collectives.
        total = output.total if micro_batch.count else output.total * 0
        if self._metric_sums is not None:
            units = self._units.of_micro_batch(micro_batch)
            self._metric_sums.add(output, units, counts=micro_batch.count > 0)
        self.losses.append(total.detach())
        return total / self._divisor

    def backward(self, loss: Tensor) -> None:
        """The backward pass from there."""
        torch.autograd.backward([loss], self._start(loss))
        span_clock().end_wait(COMMUNICATION)
