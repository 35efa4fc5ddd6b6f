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
        exact: also of parts of parameters: each state is as large as its part, or one number.
        by_groups: the update works on all parameters at once and needs memory for as many again.
    """

    bytes: int | None
    exact: bool
    by_groups: bool = False


class OptimizerState:
    """The state of the config's optimizer, for any parts of the model's parameters.

    It steps once with whole parameters. Where it cannot without values, it does with small ones whose sizes
    are all different, which shows what the size of each state follows from.

    Args:
        model: on meta; its names and classes decide about parameter groups.

    Raises:
        ConfigError: the optimizer or its groups do not fit the model.
    """

    def __init__(self, config: RunConfig, model: nn.Module) -> None:
        self._config, self._model = config, model
        whole = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        self.note: str | None = None
        self._rules: dict[str, _Rule] = {}
        self._by_groups = False
        why = self._try(whole, "meta", whole)
        if why is None:
            return
        small = {name: _SMALL[: len(shape)] for name, shape in whole.items()}
        small_why = self._try(small, "cpu", whole)
        if small_why is None:
            self.note = f"its state by a step of small parameters, since with large ones: {why}"
        else:
            self.note = f"its state is not known: {why}; with small parameters: {small_why}"

    def memory(self, shapes: Shapes) -> OptimizerMemory:
        """The state of parameters of these shapes."""
        if self._rules.keys() != shapes.keys():
            return OptimizerMemory(None, exact=False)
        return OptimizerMemory(
            sum(rule.bytes(shapes[name]) for name, rule in self._rules.items()),
            all(rule.follows_parts(shapes[name]) for name, rule in self._rules.items()),
            self._by_groups,
        )

    def _try(self, shapes: Shapes, device: str, whole: Shapes) -> str | None:
        """Take the rules from a step; return why not."""
        try:
            optimizer, parameters = _stepped(self._config, self._model, shapes, device)
            rules = {
                name: _Rule.of(shapes[name], _tensors(optimizer.state.get(parameter, {})))
                for name, parameter in parameters.items()
            }
        except DistTrainError:
            raise
        except Exception as error:  # one may read values, know no meta tensors (fused=True), want a closure
            return _said(error)
        self._rules, self._by_groups = rules, _by_groups(optimizer)
        return None


# Sizes of small parameters by dimension: different, so that a state's sizes tell which of them it has.
_SMALL = (13, 17, 19, 23, 29, 31)


@dataclass(frozen=True)
class _Rule:
    """The states of one parameter: for each the bytes of an element, and the dimensions that it has."""

    states: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], states: list[Tensor]) -> _Rule:
        return cls(tuple((state.element_size(), _dimensions(shape, tuple(state.shape))) for state in states))

    def bytes(self, shape: tuple[int, ...]) -> int:
        return sum(size * prod(shape[at] for at in dimensions) for size, dimensions in self.states)

    def follows_parts(self, shape: tuple[int, ...]) -> bool:
        return all(len(dimensions) in (0, len(shape)) for _, dimensions in self.states)


def _dimensions(shape: tuple[int, ...], state: tuple[int, ...]) -> tuple[int, ...]:
    """Which dimensions of a parameter make the size of a state."""
    if state == shape:
        return tuple(range(len(shape)))
    sizes = [size for size in state if size != 1]
    if any(shape.count(size) != 1 for size in sizes):
        raise ValueError(f"a state has the shape {state}, and its parameter {shape}")
    return tuple(shape.index(size) for size in sizes)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


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
