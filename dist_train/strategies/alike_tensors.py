"""Whether the ranks of a group have the same tensors, told by a few numbers of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor

from dist_train.distributed.pytree import map_tensors

# Relative; equal values give equal sums, but for kernels that add up in another order at each call.
_TOLERANCE = 1e-5


def tensors_inside(value: Any) -> list[Tensor]:
    """Every tensor in nested containers and dataclasses, in their order."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def are_alike(tensors: list[Tensor], group: torch_dist.ProcessGroup | None, device: torch.device) -> bool:
    """Whether all ranks of the group give tensors of the same values, but for rounding (collective).

    Args:
        device: on which the group exchanges.
    """
    found = _fingerprint(tensors)
    both = torch.cat([found, -found]).to(device)
    torch_dist.all_reduce(both, torch_dist.ReduceOp.MAX, group=group)
    largest, smallest = both[: len(found)], -both[len(found) :]
    return not bool((largest - smallest > _TOLERANCE * largest.abs().maximum(smallest.abs())).any())


def _fingerprint(tensors: list[Tensor]) -> Tensor:
    """A few float64 numbers of all elements and their places, finite always."""
    total, begin = torch.zeros(3, dtype=torch.float64), 0
    for tensor in tensors:
        flat = tensor.detach().reshape(-1).to(torch.float64).nan_to_num(1.0, 2.0, 3.0)
        # Places among the elements of all tensors: these may come in another order.
        places = torch.arange(begin, begin + flat.numel(), dtype=torch.float64, device=flat.device).cos()
        total += torch.stack([flat.sum(), (flat * places).sum(), flat.abs().sum()]).cpu()
        begin += flat.numel()
    return torch.cat([total, torch.tensor([float(begin)], dtype=torch.float64)])
