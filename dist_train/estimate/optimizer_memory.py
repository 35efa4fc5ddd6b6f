"""Bytes of an optimizer's state: the config's own optimizer does one step on parameters without values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dist_train.config.schema import RunConfig
from dist_train.errors import DistTrainError
from dist_train.estimate.shape_model import other_parameters
from dist_train.trainer.component_factory import make
from dist_train.trainer.parameter_groups import check_group_options, grouped

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class OptimizerMemory:
    """Bytes of the state after the first step.

    Args:
        bytes: None: not known.
        exact: the state of a part of a parameter has the shape of the part, or is one number.
        by_groups: the update works on all parameters at once and needs memory for as many again.
        note: what was done in place of a step without values, or why nothing is known.
    """

    bytes: int | None
    exact: bool = True
    by_groups: bool = True
    note: str | None = None


def optimizer_memory(config: RunConfig, model: nn.Module, shapes: Shapes) -> OptimizerMemory:
    """Return the memory of the optimizer's state for parameters of these shapes.

    Args:
        model: on meta; its names and classes decide about parameter groups.
        shapes: what a rank holds of each parameter.

    Raises:
        ConfigError: the optimizer or its groups do not fit the model.
    """
    try:
        return _of_step(config, model, shapes)
    except DistTrainError:
        raise
    except Exception as error:  # an optimizer may read values, or know no meta tensors (fused=True)
        why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    try:
        return _of_small_parameters(config, model, shapes, why)
    except DistTrainError:
        raise
    except Exception as error:  # closures, sparse gradients: only a training knows
        last = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return OptimizerMemory(None, exact=False, note=f"not known: {why}; with small parameters: {last}")


def _of_step(config: RunConfig, model: nn.Module, shapes: Shapes) -> OptimizerMemory:
    optimizer, parameters = _stepped(config, model, shapes, "meta")
    total, exact = 0, True
    for name, parameter in parameters.items():
        for tensor in _tensors(optimizer.state.get(parameter, {})):
            total += tensor.numel() * tensor.element_size()
            exact = exact and (tensor.numel() <= 1 or tuple(tensor.shape) == tuple(shapes[name]))
    return OptimizerMemory(total, exact, _by_groups(optimizer))


def _of_small_parameters(
    config: RunConfig, model: nn.Module, shapes: Shapes, why: str
) -> OptimizerMemory:
    """From real parameters of two rows and columns: their state is as large as they are, or one number."""
    small = {name: tuple(2 for _ in shape) for name, shape in shapes.items()}
    optimizer, parameters = _stepped(config, model, small, "cpu")
    total = 0
    for name, parameter in parameters.items():
        for tensor in _tensors(optimizer.state.get(parameter, {})):
            if tuple(tensor.shape) != small[name] and tensor.numel() > 1:
                raise ValueError(f"the state of '{name}' has the shape {tuple(tensor.shape)}, it {small[name]}")
            count = prod(shapes[name]) if tuple(tensor.shape) == small[name] else 1
            total += count * tensor.element_size()
    return OptimizerMemory(total, True, _by_groups(optimizer), f"state by a step of small parameters ({why})")


def _stepped(
    config: RunConfig, model: nn.Module, shapes: Shapes, device: str
) -> tuple[Optimizer, dict[str, nn.Parameter]]:
    parameters = {
        name: nn.Parameter(
            torch.zeros(shapes[name], dtype=own.dtype, device=device), requires_grad=own.requires_grad
        )
        for name, own in model.named_parameters()
    }
    with other_parameters(model, parameters):
        chosen = grouped(model, config.parameter_groups)
        optimizer = cast(Optimizer, make(config.optimizer, "optimizer", chosen))
    check_group_options(optimizer, config.parameter_groups)
    for parameter in parameters.values():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer, parameters


def _tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, Mapping):
        return [tensor for value in state.values() for tensor in _tensors(value)]
    if isinstance(state, list | tuple):
        return [tensor for value in state for tensor in _tensors(value)]
    return []


def _by_groups(optimizer: Optimizer) -> bool:
    """Whether a GPU updates all parameters at once: torch's default, unless a kernel does it in place."""
    defaults = optimizer.defaults
    return "foreach" in defaults and defaults["foreach"] is not False and not defaults.get("fused")
