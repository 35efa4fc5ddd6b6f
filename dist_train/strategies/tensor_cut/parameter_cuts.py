"""Which rows or columns of a parameter a rank of a tensor group has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ParameterCut:
    """A cut along one dimension.

    Args:
        dim: which one.
        parts: fused layers along it: each of them is cut by itself.
    """

    dim: int
    parts: int = 1

    def shape_of_part(self, shape: Sequence[int], size: int) -> tuple[int, ...]:
        """The shape of one rank's part; every rank has equally much.

        Args:
            shape: of the whole parameter.
            size: ranks of the tensor group.
        """
        return (*shape[: self.dim], shape[self.dim] // size, *shape[self.dim + 1 :])

    def part(self, whole: Tensor, rank: int, size: int) -> Tensor:
        """Return one rank's part, in new memory: of each fused layer its rows, one after the other."""
        layers = whole.chunk(self.parts, self.dim)
        return torch.cat([layer.chunk(size, self.dim)[rank] for layer in layers], self.dim)
