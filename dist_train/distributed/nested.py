"""Tensors inside nested containers: each replaced, and the containers made anew around them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree

Change = Callable[[torch.Tensor], torch.Tensor]
ChangeAny = Callable[[Any], Any]


def map_tensors(value: Any, change: Change) -> Any:
    """`value` with every tensor changed; containers, namedtuples and dataclasses are made anew."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def map_leaves(value: Any, change: ChangeAny, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`value` with everything changed that is not a container; what `is_leaf` names is not opened."""
    if isinstance(value, torch.Tensor) or (is_leaf is not None and is_leaf(value)):
        return change(value)
    leaves, spec = _pytree.tree_flatten(value, is_leaf)
    if len(leaves) == 1 and leaves[0] is value:
        return _map_instance(value, change, is_leaf)
    return _pytree.tree_unflatten([map_leaves(leaf, change, is_leaf) for leaf in leaves], spec)


def _map_instance(value: Any, change: ChangeAny, is_leaf: Callable[[Any], bool] | None) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: map_leaves(getattr(value, f.name), change, is_leaf)
            for f in dataclasses.fields(value)
            if f.init
        }
        return dataclasses.replace(value, **fields)
    if isinstance(value, dict):
        # A subclass that torch does not know; HF's ModelOutput is one where its library is old.
        return type(value)(**{str(key): map_leaves(item, change, is_leaf) for key, item in value.items()})
    if isinstance(value, Mapping):
        return {key: map_leaves(item, change, is_leaf) for key, item in value.items()}
    return change(value)
