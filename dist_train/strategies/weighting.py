"""Uneven shares in a plain loop: a rank's gradient counts by its number of samples.

A loop computes the mean loss of its own share and the strategy averages these means with equal
weight. Multiplying the gradient that enters the model by local * W / total makes the sum the mean
over the step's samples, with loop, loss and learning rate untouched.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_train.distributed.nested import map_tensors
from dist_train.distributed.share import ShareBox


class _ScaleGradient(torch.autograd.Function):
    """Identity forward; backward multiplies by a number."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, weight: float) -> torch.Tensor:
        ctx.weight = weight
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None]:
        # A rank without samples runs a stand-in batch: its gradient is zero even where it is infinite.
        grad = grads[0]
        return (torch.zeros_like(grad) if ctx.weight == 0 else grad * ctx.weight), None


class ShareWeighting:
    """Forward hook that applies the weight of the batch that the loader has just handed out."""

    def __init__(self, box: ShareBox, world_size: int) -> None:
        self._box = box
        self._world_size = world_size

    def __call__(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        weight = self._box.weight(self._world_size)
        if weight == 1.0 or not module.training or not torch.is_grad_enabled():
            return output
        return map_tensors(output, lambda tensor: _scaled(tensor, weight))


def _scaled(tensor: torch.Tensor, weight: float) -> torch.Tensor:
    if not tensor.requires_grad:
        return tensor
    scaled: torch.Tensor = _ScaleGradient.apply(tensor, weight)  # type: ignore[no-untyped-call]
    return scaled
