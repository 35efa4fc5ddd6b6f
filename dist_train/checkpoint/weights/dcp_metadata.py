"""Read `.metadata` of torch.distributed.checkpoint (DCP): which file holds each chunk of each tensor."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dist_train.checkpoint.format.boxes import Box, tiling_fault
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.weights.file_part import naming_file
from dist_train.checkpoint.weights.plain_pickle import Made, Named, UnknownName, read_pickle
from dist_train.errors import CheckpointError
from dist_train.jobs.frozen_imports import without_collector

METADATA = ".metadata"
_DCP = "torch.distributed.checkpoint.metadata"
_FILES = "torch.distributed.checkpoint.filesystem"
# Before torch 2.3 the properties of tensors were these.
_SHARDED = "torch.distributed._shard.sharded_tensor.metadata"
_KNOWN = {
    *((_DCP, name) for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata")),
    *((_DCP, name) for name in ("ChunkStorageMetadata", "MetadataIndex", "StorageMeta")),
    *((_DCP, name) for name in ("TensorProperties", "_MEM_FORMAT_ENCODING")),
    *((_SHARDED, name) for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    (_FILES, "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    # StorageMeta holds the directory that was written to.
    *(("pathlib", name) for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")),
    *(("pathlib._local", name) for name in ("PosixPath", "WindowsPath")),
}
_MOST = 2**62
Path_ = tuple[str | int, ...]


class _NotRead(ValueError):
    """Something that DCP writes, and that is not read here."""


class Place(NamedTuple):
    """Where one item lies: the file's name, the first byte, the number of bytes."""

    file: str
    offset: int
    length: int


class Chunk(NamedTuple):
    """A box of a tensor, and where it lies."""

    box: Box
    place: Place


@dataclass(frozen=True)
class DcpTensor:
    """One tensor; its chunks make it whole."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class DcpMetadata:
    """What a DCP directory holds.

    Args:
        tensors: by key.
        objects: key -> place of what is no tensor.
        paths: key -> its place in the nested record that was saved; of some keys only.
    """

    tensors: Mapping[str, DcpTensor]
    objects: Mapping[str, Place]
    paths: Mapping[str, Path_]


@without_collector()
def read_metadata(path: Path) -> DcpMetadata:
    """Read and check a `.metadata` file; nothing in it is run.

    Raises:
        CheckpointError: it names classes that DCP does not need.
        DamagedCheckpoint: it is cut short, or makes no sense; chunks overlap, are missing or have no place.
    """
    with naming_file(path):
        raw = path.read_bytes()
    try:
        return _parsed(read_pickle(raw, _is_known))
    except UnknownName as error:
        raise CheckpointError(
            f"{path} names {error.named}, which is none of the classes of torch.distributed.checkpoint",
            cause="unpickling it would run whatever code the maker of the file put into it",
            hint=_by_hand(path),
        ) from None
    except _NotRead as error:
        raise CheckpointError(f"{path}: {error}", hint=_by_hand(path)) from None
    except ValueError as error:
        raise DamagedCheckpoint(
            f"{path} is not what torch.distributed.checkpoint writes: {error}", file=METADATA
        ) from error


def _by_hand(path: Path) -> str:
    return (
        "if you trust its maker, write the weights alone once, in a container without your keys: "
        "python -m torch.distributed.checkpoint.format_utils dcp_to_torch "
        f"{shlex.quote(str(path.parent))} weights.pt"
    )


def _is_known(named: Named) -> bool:
    return named in _KNOWN or _dtype(named) is not None


def _dtype(named: object) -> torch.dtype | None:
    if not isinstance(named, Named) or named.module != "torch":
        return None
    found = getattr(torch, named.name, None) if named.name.isidentifier() else None
    return found if isinstance(found, torch.dtype) else None


def _parsed(record: object) -> DcpMetadata:
    state = _state(record, "Metadata")
    version = state.get("version")
    if version is not None and (not isinstance(version, str) or not version.startswith("1.")):
        raise _NotRead("it is of a later version than 1")
    places = dict(_places(_dict(state, "storage_data")))
    tensors, objects = {}, {}
    for key, entry in _dict(state, "state_dict_metadata").items():
        if not isinstance(key, str) or not isinstance(entry, Made):
            raise ValueError("the entries of the state dict are no records by name")
        if entry.of.name == "BytesStorageMetadata":
            objects[key] = _place_of(places, key, None)
        else:
            tensors[key] = _tensor(key, entry, places)
    return DcpMetadata(tensors, objects, _paths(state.get("planner_data")))


def _tensor(key: str, entry: Made, places: Mapping[tuple[str, tuple[int, ...] | None], Place]) -> DcpTensor:
    state = _state(entry, "TensorStorageMetadata")
    dtype, shape = _properties(key, state.get("properties")), _size(state.get("size"))
    chunks = state.get("chunks")
    if not isinstance(chunks, list):
        raise ValueError(f"the chunks of tensor '{key}' are no list")
    states = [_state(chunk, "ChunkStorageMetadata") for chunk in chunks]
    boxes = [Box(_size(one.get("offsets")), _size(one.get("sizes"))) for one in states]
    if any(len(offset) != len(shape) or len(size) != len(shape) for offset, size in boxes):
        raise ValueError(f"a chunk of tensor '{key}' has another number of dimensions than the tensor")
    # Ranks whose part is empty have a chunk without elements.
    full = [box for box in boxes if box.elements]
    if fault := tiling_fault(shape, full):
        raise ValueError(f"the chunks of tensor '{key}' do not make it whole: {fault}")
    return DcpTensor(dtype, shape, tuple(Chunk(box, _place_of(places, key, box.offset)) for box in full))


def _properties(key: str, properties: object) -> torch.dtype:
    if not isinstance(properties, Made) or properties.of.name != "TensorProperties":
        raise ValueError(f"tensor '{key}' has no properties")
    state = properties.state
    dtype = _dtype(state[0] if isinstance(state, tuple) and state else None)
    if dtype is None:
        raise ValueError(f"tensor '{key}' has no dtype")
    layout = state[1] if len(state) > 1 else None
    if isinstance(layout, Made) and layout.arguments != ("torch.strided",):
        raise _NotRead(f"tensor '{key}' is not dense")
    return dtype


def _places(storage: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], Place]]:
    for index, info in storage.items():
        at, where = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
        key, offset = at.get("fqn"), at.get("offset")
        if not isinstance(key, str):
            raise ValueError("a place has no name")
        if where.get("transform_descriptors"):
            raise _NotRead(f"'{key}' is compressed or encrypted by an extension of its writer")
        name = where.get("relative_path")
        if not isinstance(name, str) or not is_plain_name(name):
            raise ValueError(f"'{key}' lies in {str(name)[:200]!r}, which is no plain file name")
        place = Place(name, _count(where.get("offset")), _count(where.get("length")))
        yield (key, None if offset is None else _size(offset)), place


def is_plain_name(name: str) -> bool:
    """Whether a file of this name lies in the directory itself: no absolute path, no `..`, no folder."""
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def _place_of(
    places: Mapping[tuple[str, tuple[int, ...] | None], Place], key: str, offset: tuple[int, ...] | None
) -> Place:
    found = places.get((key, offset))
    if found is None:
        raise ValueError(
            f"no file is named for '{key}'{'' if offset is None else f' from {list(offset)} on'}"
        )
    return found


def _paths(planner_data: object) -> dict[str, Path_]:
    """The default planner's record; others may keep something else there."""
    if not isinstance(planner_data, dict):
        return {}
    return {
        key: path
        for key, path in planner_data.items()
        if isinstance(key, str)
        and isinstance(path, tuple)
        and path
        and all(type(part) in (str, int) for part in path)
    }


def _state(record: object, name: str) -> Mapping[str, Any]:
    if not isinstance(record, Made) or record.of.name != name:
        raise ValueError(f"there is no {name} where one must be")
    state = {} if record.state is None else record.state
    if record.arguments or not isinstance(state, dict):
        raise ValueError(f"a {name} is not as dataclasses are pickled")
    return state


def _dict(state: Mapping[str, Any], name: str) -> dict[Any, Any]:
    found = state.get(name)
    if not isinstance(found, dict):
        raise ValueError(f"its {name} is no dict")
    return found


def _size(size: object) -> tuple[int, ...]:
    if not isinstance(size, Made) or size.of != ("torch", "Size") or len(size.arguments) > 1:
        raise ValueError("a size or an offset is no torch.Size")
    lengths = size.arguments[0] if size.arguments else ()
    if not isinstance(lengths, tuple):
        raise ValueError("a size or an offset is no torch.Size")
    return tuple(_count(length) for length in lengths)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError("a negative number or none where a count must be")
    return value
