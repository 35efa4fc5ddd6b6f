"""Exchanges between the ranks of a tensor group, as parts of forward and backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from dist_train.distributed.parameter_shards import exchange_device


@dataclass(frozen=True)
class TensorGroup:
    """The ranks that compute every sample together.

    Args:
        rank: this one's place in it.
        size: number of ranks.
        group: torch's; None: there are no other ranks, and every exchange gives a result of the right shape.
    """

    rank: int
    size: int
    group: torch_dist.ProcessGroup | None

    def sum(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over the group, in new memory."""
        total = tensor.detach().contiguous().clone()
        if self.group is not None:
            torch_dist.all_reduce(total, group=self.group)
        return total

    def any(self, here: bool) -> bool:
        """Whether something is so on any rank of the group (collective)."""
        if self.group is None:
            return here
        found = torch.tensor([float(here)])
        found = found.to(exchange_device(found.device))
        torch_dist.all_reduce(found, torch_dist.ReduceOp.MAX, group=self.group)
        return bool(found.item())

    def join(self, tensor: Tensor) -> Tensor:
        """Put the ranks' last dimensions one after the other."""
        own = tensor.detach().contiguous()
        pieces = [own] * self.size
        if self.group is not None:
            pieces = [torch.empty_like(own) for _ in range(self.size)]
            torch_dist.all_gather(pieces, own, group=self.group)
        return torch.cat(pieces, dim=-1)


class _Same(torch.autograd.Function):
    """The tensor as it is; every rank has computed a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: TensorGroup) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum(gradient), None


class _Sum(torch.autograd.Function):
    """The sum over the group; each rank's gradient is that of the sum."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: TensorGroup) -> Tensor:
        return group.sum(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Join(torch.autograd.Function):
    """All ranks' features; the gradient of this rank's own."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: TensorGroup) -> Tensor:
        ctx.group, ctx.own = group, tensor.shape[-1]
        return group.join(tensor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.narrow(-1, ctx.group.rank * ctx.own, ctx.own), None


def to_all(tensor: Tensor, group: TensorGroup) -> Tensor:
    """Give a tensor that is equal on all ranks to parts of a layer: its gradient is the sum of theirs."""
    found: Tensor = _Same.apply(tensor, group)  # type: ignore[no-untyped-call]
    return found


def summed(tensor: Tensor, group: TensorGroup) -> Tensor:
    """Add up what the parts of a layer have computed."""
    found: Tensor = _Sum.apply(tensor, group)  # type: ignore[no-untyped-call]
    return found


def joined(tensor: Tensor, group: TensorGroup) -> Tensor:
    """Put the features that the parts of a layer have computed one after the other."""
    found: Tensor = _Join.apply(tensor, group)  # type: ignore[no-untyped-call]
    return found
