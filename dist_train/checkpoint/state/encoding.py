"""Encode state as JSON, with its tensors taken out; reversible, and an error where it would not be.

What JSON has no form for is an object with one key that begins with `$`:
`$tensor` (a key of the manifest), `$tuple`, `$float` (inf, -inf, nan), `$dict` (pairs: keys that are not
plain text), `$ordereddict`, `$counter`, `$bytes`, and those of python_types.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.tensor_bytes import check_storable
from dist_train.checkpoint.state.python_types import MARKS, decode_special, encode_special
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue

STORABLE = (
    "None, bool, int, float, str, bytes, list, tuple, dict, OrderedDict, Counter, set, deque, defaultdict, "
    "torch.Size, numpy arrays and scalars, and tensors"
)

_DICT_MARKS = {dict: "$dict", OrderedDict: "$ordereddict", Counter: "$counter"}


def encode(value: Any, path: str, tensors: dict[str, torch.Tensor]) -> JsonValue:
    """Return JSON for `value`; its tensors go into `tensors` under `path` and the keys that lead to them.

    Raises:
        CheckpointError: naming the path and the type that cannot be stored.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value  # type: ignore[no-any-return]
    special = encode_special(value, path, lambda item, where: encode(item, where, tensors))
    if special is not None:
        return special
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, torch.Tensor):
        return _take_out(value, path, tensors)
    if kind is bytes:
        return {"$bytes": value.hex()}
    if kind in (list, tuple):
        items = [encode(item, f"{path}/{index}", tensors) for index, item in enumerate(value)]
        return items if kind is list else {"$tuple": items}
    if kind in _DICT_MARKS:
        return _encode_dict(value, path, tensors)
    raise CheckpointError(
        f"'{path}' is of type {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold",
        cause=f"nothing is pickled: only {STORABLE} are stored",
        hint="convert it in state_dict() and back in load_state_dict(), or leave it out of `state`",
    )


def _take_out(value: torch.Tensor, path: str, tensors: dict[str, torch.Tensor]) -> JsonValue:
    check_storable(path, value)
    if path in tensors:
        raise CheckpointError(
            f"two tensors of the state would both be called '{path}'",
            cause="a tensor is named by the keys that lead to it",
            hint="rename one: 1 and '1' as keys of one dict, or a '/' in a key, can give one name to two",
        )
    tensors[path] = value.detach()
    return {"$tensor": path}


def _encode_dict(value: Mapping[Any, Any], path: str, tensors: dict[str, torch.Tensor]) -> JsonValue:
    plain = all(type(key) is str and not key.startswith("$") for key in value)
    if plain and type(value) is dict:
        return {key: encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
    pairs: list[JsonValue] = []
    for index, (key, item) in enumerate(value.items()):
        name = key if type(key) is str else str(key) if type(key) is int else str(index)
        pairs.append([encode(key, f"{path}/key {index}", tensors), encode(item, f"{path}/{name}", tensors)])
    return {_DICT_MARKS[type(value)]: pairs}


def decode(value: JsonValue, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return what `encode` was given; its tensors are the very ones of `tensors`.

    Raises:
        DamagedCheckpoint: a `$` key that this version does not know, or a tensor that is missing.
    """
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: decode(item, tensors) for key, item in value.items()}
    mark, content = next(iter(value.items()))
    if mark == "$tensor" and isinstance(content, str):
        if content not in tensors:
            raise DamagedCheckpoint(f"state.json refers to a tensor '{content}' that is not stored")
        return tensors[content]
    if mark == "$float" and isinstance(content, str):
        return float(content)
    if mark == "$bytes" and isinstance(content, str):
        return bytes.fromhex(content)
    if isinstance(content, list):
        return _decode_list(mark, [decode(item, tensors) for item in content])
    raise DamagedCheckpoint(f"state.json has an unknown key {mark}")


def _decode_list(mark: str, items: list[Any]) -> Any:
    if mark == "$tuple":
        return tuple(items)
    if mark == "$dict":
        return dict(items)
    if mark == "$counter":
        return Counter(dict(items))
    if mark == "$ordereddict":
        return OrderedDict(items)
    if mark in MARKS:
        try:
            return decode_special(mark, items)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise DamagedCheckpoint(f"state.json: what stands under {mark} makes none: {error}") from error
    raise DamagedCheckpoint(f"state.json has an unknown key {mark}")
