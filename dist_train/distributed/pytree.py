"""Replace the tensors inside nested containers, rebuilding the containers around them."""

from __future__ import annotations

import copy
import dataclasses
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree

from dist_train.errors import ConfigError

Change = Callable[[torch.Tensor], torch.Tensor]
ChangeAny = Callable[[Any], Any]


def map_tensors(value: Any, change: Change) -> Any:
    """`value` with `change` applied to every tensor; containers, namedtuples and dataclasses are rebuilt."""
    return map_leaves(value, lambda leaf: change(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def map_leaves(value: Any, change: ChangeAny, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """`value` with `change` applied to every leaf; what `is_leaf` accepts is a leaf too."""
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
        return _rebuilt(value, {key: map_leaves(item, change, is_leaf) for key, item in value.items()})
    if isinstance(value, Mapping):
        return {key: map_leaves(item, change, is_leaf) for key, item in value.items()}
    return change(value)


def _rebuilt(value: dict[Any, Any], items: dict[Any, Any]) -> Any:
    """A dict subclass that torch does not know, with other items under the same keys."""
    kind: Any = type(value)
    if isinstance(value, defaultdict):
        found = copy.copy(value)  # its constructor takes the factory first
        found.update(items)
    else:
        found = _made_from(kind, items)
    if list(found) != list(items):
        raise ConfigError(
            f"{kind.__name__} cannot be rebuilt with the same keys",
            cause=f"made from {list(items)[:5]} it has {list(found)[:5]}",
            hint=f"give {kind.__name__} a `to(device)` of its own, or use a plain dict in the batch",
        )
    return found


def _made_from(kind: Any, items: dict[Any, Any]) -> Any:
    if all(isinstance(key, str) for key in items):
        try:
            return kind(**items)  # the ModelOutput of old transformers releases takes its items only so
        except TypeError:
            pass
    return kind(items)
