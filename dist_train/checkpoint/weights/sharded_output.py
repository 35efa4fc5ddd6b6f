"""Write weights as several safetensors files with an index, as other tools read them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from dist_train.checkpoint.format.hashing import Digested
from dist_train.checkpoint.state.module_state import Stored
from dist_train.checkpoint.weights.byte_pieces import size_of
from dist_train.checkpoint.weights.output_file import write_file
from dist_train.checkpoint.weights.safetensors_index import INDEX, index_bytes
from dist_train.checkpoint.weights.weight_tensors import WeightTensors
from dist_train.rundir.durable_files import durable_file, sync_directory


def save_sharded(tensors: WeightTensors, folder: Path, max_bytes: int) -> dict[str, Digested]:
    """Make a directory of safetensors files and their index, durably; return the digest of each tensor.

    Of tied tensors one is stored; the index's metadata name the others.

    Args:
        tensors: by name.
        folder: the new directory.
        max_bytes: of the tensors in one file; a larger tensor has a file of its own.

    Raises:
        OSError: it could not be written.
    """
    aliases = tensors.aliases()
    stored = {name: one for name, one in tensors.stored.items() if name not in aliases}
    parts = split(stored, max_bytes)
    os.mkdir(folder)
    digests: dict[str, Digested] = {}
    files: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        digests |= write_file(folder / file, part, {"format": "pt"})
        files |= dict.fromkeys(part, file)
    with durable_file(folder / INDEX) as write:
        write(memoryview(index_bytes(files, sum(map(size_of, stored.values())), aliases)))
    sync_directory(folder)
    return digests | {second: digests[first] for second, first in aliases.items()}


def split(tensors: Mapping[str, Stored], max_bytes: int) -> list[dict[str, Stored]]:
    """Put tensors, in their order, into parts of at most `max_bytes`, or of one tensor."""
    parts: list[dict[str, Stored]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if parts[-1] and size + size_of(tensor) > max_bytes:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += size_of(tensor)
    return parts
