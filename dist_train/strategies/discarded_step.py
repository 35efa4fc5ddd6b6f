"""Keep a module's Python attributes, and silence its backward hooks, while a discarded step runs."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

# Containers whose content forward may change in place.
_CONTAINERS = (list, dict, set, deque)
# What torch itself keeps in a module's __dict__; buffers and gradients are restored by the caller.
_TORCH = frozenset(nn.Module().__dict__)


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """Restore every submodule's own attributes: counters, tensors, lists that forward appends to."""
    before = [(each, _own(each), _contents(each)) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes, contents in before:
            for name in set(_own(each)) - set(attributes):
                del each.__dict__[name]
            each.__dict__.update(attributes)
            for container, content in contents:
                _refill(container, content)


@contextmanager
def backward_hooks_off(module: nn.Module) -> Iterator[None]:
    """Silence the hooks that a program has put on gradients: one of them may be an optimizer's step."""
    registries = [registry for each in module.modules() for registry in _of_module(each)]
    registries += [registry for parameter in module.parameters() for registry in _of_parameter(parameter)]
    kept = [(registry, dict(registry)) for registry in registries]
    for registry in registries:
        registry.clear()
    try:
        yield
    finally:
        for registry, hooks in kept:
            registry.update(hooks)


def _own(module: nn.Module) -> dict[str, Any]:
    return {name: value for name, value in module.__dict__.items() if name not in _TORCH}


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    kept: list[tuple[Any, Any]] = []
    for value in _own(module).values():
        if type(value) in _CONTAINERS:
            kept.append((value, copy.copy(value)))
        elif isinstance(value, torch.Tensor) and not value.requires_grad:
            kept.append((value, value.clone()))
    return kept


def _refill(container: Any, content: Any) -> None:
    if isinstance(container, torch.Tensor):
        container.copy_(content)
        return
    container.clear()
    if isinstance(container, dict | set):
        container.update(content)
    else:
        container.extend(content)


def _of_module(module: nn.Module) -> list[Any]:
    return [module._backward_hooks, module._backward_pre_hooks]


def _of_parameter(parameter: nn.Parameter) -> list[Any]:
    found = [parameter._backward_hooks, parameter._post_accumulate_grad_hooks]
    return [registry for registry in found if registry]
