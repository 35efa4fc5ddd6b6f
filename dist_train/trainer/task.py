"""A task counts the units of a batch and computes its loss; the trainer does the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

# One metric of one batch: what to add to the numerator and to the denominator.
SumCount = tuple[Tensor | float, Tensor | float]
LossFunction = Callable[..., Tensor]
Metric = Callable[[Tensor, Tensor], SumCount]


@dataclass(frozen=True)
class LossOutput:
    """The loss SUMMED over the units of the batch, and metrics as (sum, count)."""

    total: Tensor
    metrics: Mapping[str, SumCount] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """What the trainer needs to know of a problem.

    A class attribute `units_vary = True` declares that the units per sample differ from batch to batch
    (padded text); the ranks then add their units up before each step. Without it the units per
    sample must stay the same, and the trainer checks that.
    """

    def units(self, batch: Any) -> int:
        """Samples or unmasked tokens of the batch; known before the forward pass."""

    def loss(self, model: nn.Module, batch: Any) -> LossOutput:
        """Forward pass and summed loss."""


class SupervisedTask:
    """batch = (inputs, targets); `loss` is called with reduction="sum"; one unit per sample."""

    def __init__(self, loss: LossFunction, metrics: Mapping[str, Metric] | None = None) -> None:
        self._loss = loss
        self._metrics = dict(metrics or {})

    def units(self, batch: Any) -> int:
        """Samples in the batch."""
        return len(batch[1])

    def loss(self, model: nn.Module, batch: Any) -> LossOutput:
        """Loss and metrics of the model's outputs against the targets."""
        inputs, targets = batch
        outputs = model(inputs)
        total = self._loss(outputs, targets, reduction="sum")
        if not self._metrics:
            return LossOutput(total)
        with torch.no_grad():
            metrics = {name: metric(outputs, targets) for name, metric in self._metrics.items()}
        return LossOutput(total, metrics)


class NextTokenTask:
    """Language models: batch = tokens [batch, length], or (inputs, targets), both [batch, length].

    Args:
        ignore_index: targets of this id are padding: they cost nothing and count as no unit. The
            units then differ from sample to sample and are added up over the ranks before each step.
    """

    def __init__(self, ignore_index: int | None = None) -> None:
        self._ignore_index = ignore_index
        self.units_vary = ignore_index is not None

    def units(self, batch: Any) -> int:
        """Tokens that are predicted."""
        targets = _inputs_and_targets(batch)[1]
        if self._ignore_index is None:
            return targets.numel()
        return int((targets != self._ignore_index).sum().item())

    def loss(self, model: nn.Module, batch: Any) -> LossOutput:
        """Cross entropy of each next token, and how many were guessed right."""
        inputs, targets = _inputs_and_targets(batch)
        logits = model(inputs).flatten(0, 1)
        targets = targets.flatten()
        ignored = -100 if self._ignore_index is None else self._ignore_index
        total = nn.functional.cross_entropy(logits, targets, reduction="sum", ignore_index=ignored)
        with torch.no_grad():
            kept = targets != ignored
            right = ((logits.argmax(-1) == targets) & kept).sum()
        return LossOutput(total, {"accuracy": (right, kept.sum())})


def _inputs_and_targets(batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(batch, Tensor):
        return batch[:, :-1], batch[:, 1:]
    inputs, targets = batch
    return inputs, targets
