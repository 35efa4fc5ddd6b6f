"""What a rank of a tensor group holds, from shapes alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod

import torch
from torch import nn

from dist_train.strategies.rank_memory import RankMemory
from dist_train.strategies.tensor_cut.layer_hooks import LayerMode, hook_layer
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup
from dist_train.strategies.tensor_cut.tensor_plan import CutPlan


def shapes_of_parts(model: nn.Module, plan: CutPlan) -> dict[str, tuple[int, ...]]:
    """The shape of this rank's part of each parameter, equal on all ranks of a group."""
    return {name: _shape(parameter, plan) for name, parameter in model.named_parameters()}


def tensor_memory(model: nn.Module, plan: CutPlan) -> RankMemory:
    """What each rank of a group holds."""
    shapes = shapes_of_parts(model, plan)
    parameters = dict(model.named_parameters())
    return RankMemory(
        rank=0,
        shapes=shapes,
        parameters=_bytes(parameters, shapes, parameters),
        gradients=_bytes(parameters, shapes, [name for name, p in parameters.items() if p.requires_grad]),
    )


@contextmanager
def with_parts(model: nn.Module, plan: CutPlan) -> Iterator[None]:
    """Let the model be what one rank of a group computes with, without values (meta) and other ranks.

    Its parameters have the shapes of the first rank's parts, and a forward pass gives results of the shapes
    that a rank gets.
    """
    made: dict[int, nn.Parameter] = {}
    slots = [
        (owner, name, parameter)
        for owner in model.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]
    for owner, name, parameter in slots:
        if id(parameter) not in made:
            empty = torch.empty(_shape(parameter, plan), dtype=parameter.dtype, device="meta")
            made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
        owner._parameters[name] = made[id(parameter)]
    alone = TensorGroup(0, plan.size, None)
    hooks = [hook for layer in plan.layers for hook in hook_layer(layer, alone, LayerMode())]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for owner, name, parameter in slots:
            owner._parameters[name] = parameter


def _shape(parameter: nn.Parameter, plan: CutPlan) -> tuple[int, ...]:
    cut = plan.cuts.get(id(parameter))
    shape = tuple(parameter.shape)
    return shape if cut is None else cut.shape_of_part(shape, plan.size)


def _bytes(
    parameters: dict[str, nn.Parameter], shapes: dict[str, tuple[int, ...]], names: Iterable[str]
) -> int:
    return sum(prod(shapes[name]) * parameters[name].element_size() for name in names)
