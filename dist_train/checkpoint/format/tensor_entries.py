"""The manifest's entries of tensors: which file holds each. Light, as a checkpoint may have very many.

Version 2 writes a list of boxes once for all tensors that are laid out alike: of 1,024 ranks and some hundred
tensors they would be 70 MB, their table is 0.4 MB. Version 1 had them in every entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

# One plain name: a manifest must not lead a reader out of its directory.
PLAIN_NAME = r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\z"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_KEYS = {"dtype", "shape", "layout"}
_KEYS_V1 = {"dtype", "shape", "shards"}
_SHARD_KEYS = {"file", "offset", "shape"}


class Shard(NamedTuple):
    """A box of a tensor: which file holds it, where it begins in the tensor, its shape."""

    file: str
    offset: list[int]
    shape: list[int]


class TensorEntry(NamedTuple):
    """One tensor; a replicated one has one shard.

    Args:
        dtype: as torch names it.
        shape: of the whole tensor.
        shards: its boxes, which do not overlap and leave nothing out.
        digest: XXH3-128 of the whole tensor's bytes; empty where it is not stored (all but weights).
    """

    dtype: str
    shape: list[int]
    shards: list[Shard]
    digest: str = ""


def part_name(key: str, number: int) -> str:
    """The name under which a part of a sharded tensor lies in its rank's file.

    Args:
        key: of the tensor.
        number: of the part among those of this tensor in this file, in ascending order of their boxes.
    """
    return f"{key}#{number}" if number else key


def as_object(entry: TensorEntry) -> dict[str, Any]:
    """Return an entry as `checkpoint show --json` prints it, of either version."""
    shards = [shard._asdict() for shard in entry.shards]
    found = {"dtype": entry.dtype, "shape": entry.shape, "shards": shards}
    return {**found, "digest": entry.digest} if entry.digest else found


def as_records(
    entries: Mapping[str, TensorEntry], files: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table of layouts and the entries, as they stand in a manifest of version 2.

    Args:
        entries: manifest key -> entry.
        files: the names of the manifest's files, in their order.
    """
    number = {name: place for place, name in enumerate(files)}
    names: dict[str, str] = {}
    layouts: dict[str, Any] = {}
    records: dict[str, Any] = {}
    for key in sorted(entries):
        dtype, shape, shards, digest = entries[key]
        boxes = [[number[file], offset, box] for file, offset, box in shards]
        name = names.setdefault(repr(boxes), f"L{len(names)}")
        layouts[name] = boxes
        records[key] = {"dtype": dtype, "shape": shape, "layout": name}
        if digest:
            records[key]["digest"] = digest
    return layouts, records


def from_records(layouts: object, records: object, files: Sequence[str]) -> dict[str, TensorEntry]:
    """Check what stands in a manifest of version 2, and return the entries.

    Raises:
        ValueError: anything else than `as_records` writes.
    """
    if not isinstance(layouts, dict) or not isinstance(records, dict):
        raise ValueError("the layouts or the tensors are no object")
    known = {name: _layout(name, boxes, files) for name, boxes in layouts.items()}
    return {key: _entry(key, record, known) for key, record in records.items()}


def from_records_v1(records: object) -> dict[str, TensorEntry]:
    """Return the entries of a manifest of version 1.

    Raises:
        ValueError: anything else than version 1 wrote.
    """
    if not isinstance(records, dict):
        raise ValueError("the tensors are no object")
    return {key: _entry_v1(key, record) for key, record in records.items()}


def _layout(name: str, boxes: object, files: Sequence[str]) -> list[Shard]:
    what = f"layout {name!r}"
    if not isinstance(boxes, list) or not boxes:
        raise ValueError(f"{what} is no list of boxes")
    found = []
    for box in boxes:
        if not isinstance(box, list) or len(box) != 3:
            raise ValueError(f"a box of {what} is {box!r}")
        file, offset, shape = box
        if type(file) is not int or not 0 <= file < len(files):
            raise ValueError(f"a box of {what} lies in the file {file!r} of {len(files)}")
        found.append(_shard(what, files[file], offset, shape))
    return found


def _entry(key: object, record: object, layouts: Mapping[str, list[Shard]]) -> TensorEntry:
    if not isinstance(key, str) or not isinstance(record, dict) or record.keys() - {"digest"} != _KEYS:
        raise ValueError(f"the entry of tensor {key!r} has not the keys {', '.join(sorted(_KEYS))}")
    dtype, layout, digest = record["dtype"], record["layout"], record.get("digest", "")
    if type(dtype) is not str or type(layout) is not str or layout not in layouts:
        raise ValueError(f"tensor {key!r} has the dtype {dtype!r} and the layout {layout!r}")
    if type(digest) is not str or (digest and not _DIGEST.fullmatch(digest)):
        raise ValueError(f"tensor {key!r} has the digest {digest!r}")
    shape = _counts(f"tensor {key!r}", record["shape"])
    if any(len(shard.offset) != len(shape) for shard in layouts[layout]):
        raise ValueError(f"tensor {key!r} and its layout {layout!r} have other numbers of dimensions")
    return TensorEntry(dtype, shape, layouts[layout], digest)


def _entry_v1(key: object, record: object) -> TensorEntry:
    if not isinstance(key, str) or not isinstance(record, dict) or record.keys() != _KEYS_V1:
        raise ValueError(f"the entry of tensor {key!r} has not the keys {', '.join(sorted(_KEYS_V1))}")
    dtype, shape, shards = record["dtype"], record["shape"], record["shards"]
    if type(dtype) is not str or not isinstance(shards, list):
        raise ValueError(f"tensor {key!r} has the dtype {dtype!r} and the shards {shards!r}")
    what = f"tensor {key!r}"
    for shard in shards:
        if not isinstance(shard, dict) or shard.keys() != _SHARD_KEYS:
            raise ValueError(f"a shard of {what} has not the keys {', '.join(sorted(_SHARD_KEYS))}")
    found = [_shard(what, shard["file"], shard["offset"], shard["shape"]) for shard in shards]
    return TensorEntry(dtype, _counts(what, shape), found)


def _shard(what: str, file: object, offset: object, shape: object) -> Shard:
    if type(file) is not str or not _PLAIN_NAME.fullmatch(file):
        raise ValueError(f"{what} lies in the file {file!r}, which is no plain name")
    found = Shard(file, _counts(what, offset), _counts(what, shape))
    if len(found.offset) != len(found.shape):
        raise ValueError(f"{what} has a box of the offset {offset!r} and the shape {shape!r}")
    return found


def _counts(what: str, value: object) -> list[int]:
    if isinstance(value, list) and _are_counts(value):
        return value
    raise ValueError(f"{what} has {value!r} where counts must be")


def _are_counts(values: Iterable[object]) -> bool:
    # type() and not isinstance(): True is an int.
    return all(type(count) is int and count >= 0 for count in values)
