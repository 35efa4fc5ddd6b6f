"""Types that JSON has no form for: each with its mark, what is written under it, and the way back.

`$size` (torch.Size), `$set`, `$frozenset`, `$deque` (maxlen, items), `$defaultdict` (factory, pairs),
`$ndarray` (dtype, shape, bytes as a tensor), `$npscalar` (dtype, bytes as hex). No name in a file is ever
looked up but those of FACTORIES.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue

# Of one item, under a path of its own.
EncodeItem = Callable[[Any, str], "JsonValue"]

_BUILTIN = (bool, int, float, str, bytes, list, tuple, set, dict, Counter, deque, OrderedDict)
FACTORIES: dict[str, type] = {kind.__name__: kind for kind in _BUILTIN}
MARKS = ("$size", "$set", "$frozenset", "$deque", "$defaultdict", "$ndarray", "$npscalar")


def encode_special(value: Any, path: str, encode_item: EncodeItem) -> JsonValue:
    """Return JSON for a value of one of these types; None for any other.

    Raises:
        CheckpointError: a set that holds tensors, a numpy array of objects, a factory that has no name.
    """
    kind = type(value)
    if kind is torch.Size:
        return {"$size": list(value)}
    if kind in (set, frozenset):
        return {f"${kind.__name__}": _sorted_items(value, path, encode_item)}
    if kind is deque:
        return {"$deque": [value.maxlen, [encode_item(v, f"{path}/{n}") for n, v in enumerate(value)]]}
    if kind is defaultdict:
        pairs = encode_item(dict(value), path)
        return {"$defaultdict": [_factory_name(value.default_factory, path), pairs]}
    if kind is np.ndarray:
        return {
            "$ndarray": [_dtype(value.dtype, path), list(value.shape), encode_item(_bytes_of(value), path)]
        }
    if isinstance(value, np.generic):
        return {"$npscalar": [_dtype(value.dtype, path), value.tobytes().hex()]}
    return None


def decode_special(mark: str, items: list[Any]) -> Any:
    """Return what `encode_special` was given, from the mark and what stood under it, decoded."""
    if mark == "$size":
        return torch.Size(items)
    if mark == "$set":
        return set(items)
    if mark == "$frozenset":
        return frozenset(items)
    if mark == "$deque":
        return deque(items[1], maxlen=items[0])
    if mark == "$defaultdict":
        return defaultdict(None if items[0] is None else FACTORIES[items[0]], items[1])
    dtype = np.dtype(items[0])
    if mark == "$ndarray":
        return items[2].numpy().view(dtype).reshape(items[1]).copy()
    return np.frombuffer(bytes.fromhex(items[1]), dtype)[0]


def _sorted_items(value: Any, path: str, encode_item: EncodeItem) -> list[JsonValue]:
    # The order of a set is that of its hashes, which differ between processes.
    items = [encode_item(item, f"{path}/item") for item in value if not _holds_tensors(item)]
    if len(items) != len(value):
        raise CheckpointError(
            f"'{path}' is a {type(value).__name__} of tensors, which has no order to store them in",
            hint="store a list",
        )
    return sorted(items, key=dump_canonical)


def _holds_tensors(item: Any) -> bool:
    if isinstance(item, tuple | frozenset):
        return any(_holds_tensors(inner) for inner in item)
    return isinstance(item, torch.Tensor)


def _factory_name(factory: Any, path: str) -> str | None:
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if FACTORIES.get(name) is not factory:
        raise CheckpointError(
            f"'{path}' is a defaultdict whose factory is {factory!r}, which a checkpoint cannot hold",
            cause=f"nothing is pickled: factories are stored by name, of {', '.join(FACTORIES)}",
            hint="give state_dict() a plain dict of it: dict(...)",
        )
    return str(name)


def _dtype(dtype: np.dtype[Any], path: str) -> str:
    # Objects are pointers, structures have names that dtype.str leaves out, long doubles undefined bytes.
    if dtype.hasobject or dtype.kind == "V" or dtype.char in "gG" or not dtype.itemsize:
        raise CheckpointError(
            f"'{path}' is of numpy dtype {dtype}, which a checkpoint cannot hold",
            hint="convert it to numbers, text or dates of one size in state_dict(), and back on loading",
        )
    return dtype.str


def _bytes_of(array: np.ndarray[Any, Any]) -> torch.Tensor:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return torch.from_numpy(flat if flat.flags.writeable else flat.copy())
