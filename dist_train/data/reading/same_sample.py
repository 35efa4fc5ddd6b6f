"""Compare two samples, or two states of a data set, bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def same_sample(one: Any, other: Any) -> bool:
    """Whether both hold the same values, NaN equal to itself.

    Objects that cannot be compared count as equal.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, np.ndarray):
        if one.dtype.hasobject:
            return one.shape == other.shape and same_sample(one.tolist(), other.tolist())
        return _array_facts(one) == _array_facts(other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same_sample(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_sample, one, other))
    if dataclasses.is_dataclass(one) or _compares_by_identity(one):
        return same_sample(getattr(one, "__dict__", None), getattr(other, "__dict__", None))
    return _equal(one, other)


def _compares_by_identity(value: Any) -> bool:
    equal: Any = type(value).__eq__
    return equal is object.__eq__


def _array_facts(array: Any) -> tuple[Any, ...]:
    return array.dtype, array.shape, array.tobytes()


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout != torch.strided:
        return True
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _equal(one: Any, other: Any) -> bool:
    try:
        # A float that is no number does not equal itself.
        return bool(one == other) or (one != one and other != other)
    except Exception:
        return True
