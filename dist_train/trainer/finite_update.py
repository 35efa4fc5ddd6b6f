"""The update of a step, left out where its loss or gradient is not finite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True)
class StepNumbers:
    """What a step was, still on the device.

    Args:
        losses: of this rank's micro-batches.
        norm: of the exchanged gradients, equal on all ranks.
    """

    losses: tuple[Tensor, ...]
    norm: Tensor


class FiniteUpdate:
    """Applies an optimizer's step only where the gradients are finite on all ranks.

    An optimizer with `fused=True` decides on the device, by the flag that torch's GradScaler gives it. Any
    other one must be told by the host, which then waits for the device at every step: there is no way to
    undo Adam's step with zero gradients, which moves the weights by its momentum.

    Args:
        model: its buffers go back, too: a forward pass on such a batch spoils the statistics of a batch norm.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._optimizer = optimizer
        self._on_device = bool(getattr(optimizer, "_step_supports_amp_scaling", False))
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []

    def begin(self) -> None:
        """Keep the buffers as they are before the step's first forward pass."""
        self._buffers = [
            (owner, name, buffer.clone())
            for owner in self._model.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        ]

    def apply(self, norm: Tensor) -> None:
        """The optimizer's step, or none and the buffers of before."""
        finite = torch.isfinite(norm)
        if self._on_device:
            self._step_on_device(finite)
            self._put_back(finite)
        elif bool(finite):
            self._optimizer.step()
        else:
            self._put_back(finite)
        self._buffers = []

    def _step_on_device(self, finite: Tensor) -> None:
        optimizer: Any = self._optimizer
        optimizer.grad_scale, optimizer.found_inf = None, (~finite).to(torch.float32)
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale, optimizer.found_inf

    def _put_back(self, finite: Tensor) -> None:
        with torch.no_grad():
            for owner, name, before in self._buffers:
                now = owner._buffers[name]
                if now is not None and now.shape == before.shape:
                    now.copy_(torch.where(finite.to(now.device), now, before))
                else:
                    owner._buffers[name] = before


def start_gradient(total: Tensor) -> Tensor:
    """The gradient that a backward pass begins with: 1, or nan where the loss itself is not finite.

    So the exchange of gradients tells every rank of a loss that is not finite on one of them, also where its
    gradients are finite, without a collective of its own.
    """
    loss = total.detach()
    return torch.where(torch.isfinite(loss), torch.ones_like(loss), torch.full_like(loss, torch.nan))
