"""Gradients of the parameters that every rank of a group has whole: are they the same on all of them?

Between a colwise and a rowwise layer each rank computes with its own features. A whole parameter that is used
there (a learned scale of each head, the slope of a PReLU) gets on each rank the gradient of these features
alone. The forward pass is right, and without this check each rank would train on with weights of its own.
"""

from __future__ import annotations

from collections import Counter

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from dist_train.distributed.parameter_shards import exchange_device
from dist_train.errors import UsageError
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup

# Of each parameter, those that are not zero: what comes before a weight that begins with zeros has none yet.
_COMPARED = 8
# Of the sum of the gradient's absolute values: kernels may add up in another order at each call.
_TOLERANCE = 1e-3


class WholeGradients:
    """Compares the first gradients of each whole parameter that are not zero everywhere.

    Args:
        model: whose parameters they are.
        group: this rank's tensor group.
    """

    def __init__(self, model: nn.Module, group: TensorGroup) -> None:
        self._model, self._group = model, group
        self._compared: Counter[tuple[int, str]] = Counter()

    def watch(self, owner: nn.Module, name: str, part: Tensor) -> None:
        """Compare the gradient of this tensor when a backward pass has it (collective in the group)."""
        if part.requires_grad and self._compared[id(owner), name] < _COMPARED:
            part.register_hook(lambda gradient: self._compare(owner, name, gradient))  # type: ignore[no-untyped-call]

    def _compare(self, owner: nn.Module, name: str, gradient: Tensor) -> None:
        numbers = _numbers(gradient)
        both = torch.cat([numbers, -numbers]).to(exchange_device(numbers.device))
        torch_dist.all_reduce(both, torch_dist.ReduceOp.MAX, group=self._group.group)
        largest, smallest = both[:3], -both[3:]
        size = float(largest[2])
        if size:
            self._compared[id(owner), name] += 1
        if bool((largest - smallest > _TOLERANCE * size).any()):
            path = next((path for path, module in self._model.named_modules() if module is owner), "")
            full = f"{path}.{name}".lstrip(".")
            raise UsageError(
                f"the ranks of a tensor group have unlike gradients of '{full}', which each has whole",
                cause="it is used between a colwise and a rowwise layer, where ranks have unlike features",
                hint="leave the layers around it out of the plan",
            )


def _numbers(gradient: Tensor) -> Tensor:
    """Three float64 numbers of all elements and their places, finite always; the last: the sum of sizes."""
    flat = gradient.detach().reshape(-1).to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
    places = torch.arange(flat.numel(), dtype=torch.float64, device=flat.device).cos()
    return torch.stack([flat.sum(), (flat * places).sum(), flat.abs().sum()]).cpu()
