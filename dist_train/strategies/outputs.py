"""Tensors inside whatever a model returns, from which a backward pass can start."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree

from dist_train.distributed.nested import map_tensors


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
