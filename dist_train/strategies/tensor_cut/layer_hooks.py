"""Forward passes that compute with this rank's parts of the parameters.

The parameters are DTensors, so that everything that looks at them (optimizers, norms, checkpoints) sees how
they are spread. The computation itself is on plain tensors: any operation works, and autocast too. So each
forward pass sees this rank's part under the parameter's name, as an attribute of the module for that long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dist_train.distributed.parameter_shards import is_sharded
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup, joined, summed, to_all
from dist_train.strategies.tensor_cut.tensor_plan import CutLayer
from dist_train.strategies.tensor_cut.whole_gradients import WholeGradients

Slot = tuple[nn.Module, str]


@dataclass
class LayerMode:
    """How the layers of a model compute.

    Args:
        whole: with whole parameters, which each layer gathers, and without exchanges: for a comparison.
        inputs: gets the inputs of rowwise layers by name, while they are compared.
        gradients: compares those of parameters that each rank has whole.
    """

    whole: bool = False
    inputs: list[tuple[str, Tensor]] | None = None
    gradients: WholeGradients | None = None


class OwnParts:
    """While a module runs, parameters are this rank's plain parts.

    Args:
        slots: modules and the names of their parameters.
        mode: of the model's layers.
    """

    def __init__(self, slots: Sequence[Slot], mode: LayerMode) -> None:
        self._slots, self._mode = slots, mode
        self._depth = 0

    def watch(self, module: nn.Module) -> None:
        """Put them in place before each forward pass of this module, and take them out after it."""
        # Before the hooks of a layer that is a unit by itself: a rowwise one takes its bias out.
        module.register_forward_pre_hook(self._begin, prepend=True)
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
                owner.__dict__[name] = parameter.full_tensor() if self._mode.whole else part
                if self._mode.gradients and all(p.is_replicate() for p in parameter.placements):
                    self._mode.gradients.watch(owner, name, part)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            for owner, name in self._slots:
                owner.__dict__.pop(name, None)


def hook_layer(layer: CutLayer, group: TensorGroup, mode: LayerMode) -> list[RemovableHandle]:
    """Add the exchanges that a layer's style needs before and after its forward pass; return the hooks."""
    module, style = layer.module, layer.style.style
    if isinstance(module, nn.Embedding):
        return _hook_embedding(module, module.num_embeddings // group.size, group, mode)
    if style == "rowwise":
        return _hook_rowwise(layer, group, mode)

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return args if mode.whole else (to_all(args[0], group), *args[1:])

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output if mode.whole else joined(output, group)

    hooks = [module.register_forward_pre_hook(before)]
    if style == "colwise_gathered":
        hooks.append(module.register_forward_hook(after))
    return hooks


def _hook_rowwise(layer: CutLayer, group: TensorGroup, mode: LayerMode) -> list[RemovableHandle]:
    """Each rank multiplies its own features; the bias comes once, after the sum."""
    kept: list[Any] = []
    module = layer.module

    def before(module: nn.Module, args: Any) -> None:
        if mode.inputs is not None:
            mode.inputs.append((layer.name, args[0].detach()))
        if not mode.whole:
            kept.append((module.bias, "bias" in module.__dict__))
            module.__dict__["bias"] = None

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if not kept:
            return output
        total, (bias, _) = summed(output, group), kept[-1]
        return total if bias is None else total + bias.to(total.dtype)

    def end(module: nn.Module, args: Any, output: Any) -> None:
        if kept:
            bias, was_own_part = kept.pop()
            del module.__dict__["bias"]
            if was_own_part:
                module.__dict__["bias"] = bias

    return [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after),
        module.register_forward_hook(end, always_call=True),
    ]


def _hook_embedding(
    module: nn.Module, rows: int, group: TensorGroup, mode: LayerMode
) -> list[RemovableHandle]:
    """Each rank looks up the rows that it has, and gives zeros for the others'."""
    outside: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if mode.whole:
            return args
        local = args[0] - group.rank * rows
        # An index that no rank has must be an error, as it is without a cut.
        wrong = (args[0] < 0) | (args[0] >= rows * group.size)
        others = (local < 0) | (local >= rows)
        outside.append(others & ~wrong)
        return (torch.where(others & ~wrong, 0, local), *args[1:])

    def after(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        if mode.whole:
            return output
        return summed(output.masked_fill(outside[-1].unsqueeze(-1), 0.0), group)

    return [
        module.register_forward_pre_hook(before),
        module.register_forward_hook(after),
        module.register_forward_hook(lambda module, args, output: outside.clear(), always_call=True),
    ]
