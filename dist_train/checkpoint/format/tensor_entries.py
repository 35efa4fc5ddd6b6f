"""The manifest's entries of tensors: which file holds each. Light, as a checkpoint may have very many."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# One plain name: a manifest must not lead a reader out of its directory.
PLAIN_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\z"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_ENTRY_KEYS = {"dtype", "shape", "shards"}
_SHARD_KEYS = {"file", "offset", "shape"}


class Shard(NamedTuple):
    """A box of a tensor: which file holds it, where it begins in the tensor, its shape."""

    file: str
    offset: list[int]
    shape: list[int]


class TensorEntry(NamedTuple):
    """One tensor; a replicated one has one shard."""

    dtype: str
    shape: list[int]
    shards: list[Shard]


def entries_as_records(entries: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """Return the entries as they stand in the manifest."""
    return {
        key: {
            "dtype": dtype,
            "shape": shape,
            "shards": [{"file": file, "offset": offset, "shape": box} for file, offset, box in shards],
        }
        for key, (dtype, shape, shards) in entries.items()
    }


def entries_from_records(value: object) -> dict[str, TensorEntry]:
    """Check what stands in a manifest, and return the entries; what are entries already stay.

    Raises:
        ValueError: anything else than `entries_as_records` writes.
    """
    if not isinstance(value, dict):
        raise ValueError("the tensors are no object")
    return {
        key: entry if isinstance(entry, TensorEntry) else _entry(key, entry) for key, entry in value.items()
    }


def _entry(key: object, record: object) -> TensorEntry:
    if not isinstance(key, str) or not isinstance(record, dict) or record.keys() != _ENTRY_KEYS:
        raise ValueError(f"the entry of tensor {key!r} has not the keys {', '.join(sorted(_ENTRY_KEYS))}")
    dtype, shape, shards = record["dtype"], record["shape"], record["shards"]
    if type(dtype) is not str or not isinstance(shards, list):
        raise ValueError(f"tensor {key!r} has the dtype {dtype!r} and the shards {shards!r}")
    return TensorEntry(dtype, _counts(key, shape), [_shard(key, shard) for shard in shards])


def _shard(key: str, record: object) -> Shard:
    if not isinstance(record, dict) or record.keys() != _SHARD_KEYS:
        raise ValueError(f"a shard of tensor {key!r} has not the keys {', '.join(sorted(_SHARD_KEYS))}")
    file = record["file"]
    if type(file) is not str or not _PLAIN_NAME.fullmatch(file):
        raise ValueError(f"tensor {key!r} lies in the file {file!r}, which is no plain name")
    return Shard(file, _counts(key, record["offset"]), _counts(key, record["shape"]))


def _counts(key: str, value: object) -> list[int]:
    if isinstance(value, list) and _are_counts(value):
        return value
    raise ValueError(f"tensor {key!r} has {value!r} where counts must be")


def _are_counts(values: Iterable[object]) -> bool:
    # type() and not isinstance(): True is an int.
    return all(type(count) is int and count >= 0 for count in values)
