"""Weights in several safetensors files, and the index that says which file holds which tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.tensor_file import MAX_HEADER
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights.dcp_metadata import is_plain_name
from dist_train.checkpoint.weights.safetensors_file import open_safetensors, second_names
from dist_train.errors import CheckpointError

INDEX = "model.safetensors.index.json"
_SUFFIX = ".safetensors.index.json"
WEIGHT_MAP, METADATA = "weight_map", "metadata"


@dataclass(frozen=True)
class IndexedTensors:
    """What an index names.

    Args:
        tensors: by name, tied ones under each of theirs.
        unused: tensors of the files that the index does not name.
    """

    tensors: dict[str, StoredTensor]
    unused: tuple[str, ...]


def find_index(folder: Path) -> Path | None:
    """Return the index in a directory; None where there is none.

    Raises:
        CheckpointError: there are several, and none is called model.safetensors.index.json.
    """
    if (folder / INDEX).is_file():
        return folder / INDEX
    found = sorted(path for path in folder.iterdir() if path.name.endswith(_SUFFIX))
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} holds {len(found)} indexes: {', '.join(path.name for path in found)}",
            hint=f"give one of them: {found[0]}",
        )
    return found[0] if found else None


def open_index(path: Path) -> IndexedTensors:
    """Open the files that an index names; tensors are read when they are asked for.

    Raises:
        CheckpointError: the index makes no sense, or a file is missing, damaged or lacks a tensor.
    """
    index = _read_index(path)
    names: dict[str, list[str]] = {}
    for name, file in index[WEIGHT_MAP].items():
        names.setdefault(file, []).append(name)
    tensors: dict[str, StoredTensor] = {}
    unused: list[str] = []
    metadata = {name: text for name, text in index[METADATA].items() if isinstance(text, str)}
    for file in sorted(names):
        part = path.parent / file
        if not part.is_file():
            raise DamagedCheckpoint(f"{part} is missing: {path.name} names it", file=file)
        reader = open_safetensors(part)
        metadata = {**reader.header.metadata, **metadata}
        there = reader.stored()
        if lacking := sorted(set(names[file]) - set(there)):
            raise DamagedCheckpoint(
                f"{part} does not hold '{lacking[0]}', which {path.name} places there", file=file
            )
        tensors |= {name: there[name] for name in names[file]}
        unused += sorted(set(there) - set(names[file]))
    tied = {second: tensors[first] for second, first in second_names(metadata, tensors).items()}
    return IndexedTensors(tensors | tied, tuple(unused))


def _read_index(path: Path) -> dict[str, dict[str, str]]:
    if path.stat().st_size > MAX_HEADER:
        raise _malformed(path, f"it has {path.stat().st_size} bytes")
    try:
        index = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise _malformed(path, str(error)) from error
    if not isinstance(index, dict) or not isinstance(index.get(WEIGHT_MAP), dict):
        raise _malformed(path, f"it has no {WEIGHT_MAP}")
    index[METADATA] = index.get(METADATA) or {}
    if not isinstance(index[METADATA], dict):
        raise _malformed(path, "its metadata are no object")
    for name, file in index[WEIGHT_MAP].items():
        if not isinstance(file, str) or not is_plain_name(file):
            raise _malformed(path, f"'{name}' lies in {str(file)[:200]!r}, which is no plain file name")
    if not index[WEIGHT_MAP]:
        raise _malformed(path, "it names no tensor")
    return index


def _malformed(path: Path, why: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(f"{path} is no index of safetensors files: {why}", file=path.name)


def index_bytes(files: Mapping[str, str], total_bytes: int, aliases: Mapping[str, str]) -> bytes:
    """Make an index.

    Args:
        files: tensor -> file.
        total_bytes: of all tensors.
        aliases: second names of tied tensors, each with the first one, which is stored.
    """
    metadata = {"total_size": total_bytes, **aliases}
    index = {METADATA: metadata, WEIGHT_MAP: dict(sorted(files.items()))}
    return (json.dumps(index, indent=2) + "\n").encode()
