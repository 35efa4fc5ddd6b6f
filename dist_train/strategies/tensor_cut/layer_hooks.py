"""Forward passes that compute with this rank's parts of the parameters.

The parameters are DTensors, so that everything that looks at them (optimizers, norms, checkpoints) sees how
they are spread. The computation itself is on plain tensors: any operation works, and autocast too. So each
forward pass sees this rank's part under the parameter's name, as an attribute of the module for that long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dist_train.distributed.parameter_shards import is_sharded
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup, joined, summed, to_all
from dist_train.strategies.tensor_cut.tensor_plan import CutLayer

Slot = tuple[nn.Module, str]


class OwnParts:
    """While a module runs, parameters are this rank's plain parts.

    Args:
        slots: modules and the names of their parameters.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._slots = slots
        self._depth = 0

    def watch(self, module: nn.Module) -> None:
        """Put them in place before each forward pass of this module, and take them out after it."""
        module.register_forward_pre_hook(self._begin)
        module.register_forward_hook(self._end, always_call=True)

    def _begin(self, module: nn.Module, args: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        for owner, name in self._slots:
            parameter = owner._parameters[name]
            if is_sharded(parameter):
                # The gradient of a copy is the same on all ranks: each has the whole layer's input.
                part = parameter.to_local(grad_placements=parameter.placements)
                owner.__dict__[name] = part

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            for owner, name in self._slots:
                owner.__dict__.pop(name, None)


def hook_layer(layer: CutLayer, group: TensorGroup) -> list[RemovableHandle]:
    """Add the exchanges that a layer's style needs before and after its forward pass; return the hooks."""
    module, style = layer.module, layer.style.style
    if isinstance(module, nn.Embedding):
        return _hook_embedding(module, module.num_embeddings // group.size, group)
    if style == "rowwise":
        return _hook_rowwise(module, group)

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (to_all(args[0], group), *args[1:])

    hooks = [module.register_forward_pre_hook(before)]
    if style == "colwise_gathered":
        hooks.append(module.register_forward_hook(lambda module, args, output: joined(output, group)))
    return hooks


def _hook_rowwise(module: nn.Module, group: TensorGroup) -> list[RemovableHandle]:
    """Each rank multiplies its own features; the bias comes once, after the sum."""
    kept: list[Any] = []

    def before(module: nn.Module, args: Any) -> None:
        kept.append(module.bias)
        module.__dict__["bias"] = None

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        total = summed(output, group)
        bias = kept[-1]
        return total if bias is None else total + bias.to(total.dtype)

    def end(module: nn.Module, args: Any, output: Any) -> None:
        bias = kept.pop()
        module.__dict__.pop("bias", None)
        if bias is not None and not isinstance(bias, nn.Parameter):
            module.__dict__["bias"] = bias

    return [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after),
        module.register_forward_hook(end, always_call=True),
    ]


def _hook_embedding(module: nn.Module, rows: int, group: TensorGroup) -> list[RemovableHandle]:
    """Each rank looks up the rows that it has, and gives zeros for the others'."""
    outside: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        local = args[0] - group.rank * rows
        # An index that no rank has must be an error, as it is without a cut.
        wrong = (args[0] < 0) | (args[0] >= rows * group.size)
        others = (local < 0) | (local >= rows)
        outside.append(others & ~wrong)
        return (torch.where(others & ~wrong, 0, local), *args[1:])

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return summed(output.masked_fill(outside[-1].unsqueeze(-1), 0.0), group)

    return [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after),
        module.register_forward_hook(lambda module, args, output: outside.clear(), always_call=True),
    ]
