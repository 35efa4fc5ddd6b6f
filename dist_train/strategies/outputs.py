"""Tensors inside whatever a model returns: find them, or replace each one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree

Change = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(value: Any, change: Change) -> Any:
    """`value` with every tensor changed; containers, namedtuples and dataclasses are made anew."""
    if isinstance(value, torch.Tensor):
        return change(value)
    leaves, spec = _pytree.tree_flatten(value)
    if len(leaves) == 1 and leaves[0] is value:
        return _map_instance(value, change)
    return _pytree.tree_unflatten([map_tensors(leaf, change) for leaf in leaves], spec)


def _map_instance(value: Any, change: Change) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: map_tensors(getattr(value, f.name), change) for f in dataclasses.fields(value) if f.init
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, dict):
        # A subclass that torch does not know; HF's ModelOutput is one where its library is old.
        return type(value)(**{str(key): map_tensors(item, change) for key, item in value.items()})
    return value


def trained_tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor of `value` from which a backward pass can start, as map_tensors sees them."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.requires_grad:
            found.append(tensor)
        return tensor

    map_tensors(value, note)
    return found


def hidden_tensors(value: Any) -> Iterator[str]:
    """Names of types inside `value` that hold such tensors where map_tensors cannot replace them."""
    for leaf in _pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor) or dataclasses.is_dataclass(leaf) or isinstance(leaf, dict):
            continue
        inside = getattr(leaf, "__dict__", {})
        if any(trained_tensors(item) for item in inside.values()):
            yield type(leaf).__name__
