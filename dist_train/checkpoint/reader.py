"""Reading a whole checkpoint: every byte is verified before any is handed out."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dist_train.checkpoint.blocks import VerifiedReader, check_file
from dist_train.checkpoint.canonical import load_canonical
from dist_train.checkpoint.damage import Damaged, Unsupported
from dist_train.checkpoint.layout import STATE_JSON
from dist_train.checkpoint.manifest import FileEntry, Manifest
from dist_train.checkpoint.memory import dtype_name
from dist_train.checkpoint.tensorfile import read_tensors
from dist_train.checkpoint.verify import read_committed

TENSOR_FILE = ".safetensors"
PREFIX = "prefix"


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory of its own.

    Args:
        path: where it was read.
        manifest: its manifest.
        tensors: manifest key -> tensor; aliases are not expanded.
        entries: state key -> {kind, content}, from state.json.
        reserved: what save() noted for itself: score, seed.
    """

    path: Path
    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    entries: Mapping[str, Any]
    reserved: Mapping[str, Any]

    def below(self, prefix: str) -> dict[str, torch.Tensor]:
        """Tensors, tied ones under both names, whose key begins with `prefix`/, by the rest of the key."""
        aliases = {second: self.tensors[first] for second, first in self.manifest.aliases.items()}
        start = f"{prefix}/"
        everything = {**self.tensors, **aliases}
        return {key[len(start) :]: tensor for key, tensor in everything.items() if key.startswith(start)}


def read_checkpoint(path: Path) -> Loaded:
    """Read and verify everything.

    Raises:
        Damaged: naming the file and block; Unsupported: a later version's checkpoint.
    """
    manifest = read_committed(path)
    tensors: dict[str, torch.Tensor] = {}
    state: Any = None
    for entry in manifest.files:
        try:
            if entry.name.endswith(TENSOR_FILE):
                tensors |= _read_tensor_file(path / entry.name, entry, manifest)
            elif entry.name == STATE_JSON:
                state = _read_state(path / entry.name, entry)
            else:
                check_file(path / entry.name, entry.bytes, entry.xxh3_128, entry.block_bytes)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.ENOENT):
                raise
            raise Damaged(f"{entry.name}: {os.strerror(error.errno)}", file=entry.name) from error
    _check_complete(manifest, tensors)
    if not isinstance(state, dict) or set(state) != {"entries", "reserved"}:
        raise Damaged(f"{STATE_JSON} is not what save() writes", file=STATE_JSON)
    return Loaded(path, manifest, tensors, state["entries"], state["reserved"])


def _read_tensor_file(path: Path, entry: FileEntry, manifest: Manifest) -> dict[str, torch.Tensor]:
    try:
        with VerifiedReader(path, entry.bytes, entry.xxh3_128, entry.block_bytes) as reader:
            header, tensors = read_tensors(reader)
    except Damaged as error:
        if error.block is None:
            # A header that makes no sense is the effect; name the block that is the cause.
            check_file(path, entry.bytes, entry.xxh3_128, entry.block_bytes)
        raise
    prefix = header.metadata.get(PREFIX, "")
    found = {prefix + name: tensor for name, tensor in tensors.items()}
    for key, tensor in found.items():
        listed = manifest.tensors.get(key)
        if listed is None or listed.shards[0].file != entry.name:
            raise Damaged(f"{entry.name} holds a tensor '{key}' that the manifest does not place there")
        if (listed.dtype, listed.shape) != (dtype_name(tensor.dtype), list(tensor.shape)):
            raise Damaged(f"{entry.name}: tensor '{key}' is not of the kind that the manifest says")
    return found


def _read_state(path: Path, entry: FileEntry) -> object:
    raw = bytearray(entry.bytes)
    with VerifiedReader(path, entry.bytes, entry.xxh3_128, entry.block_bytes) as reader:
        reader.read_into(memoryview(raw))
        reader.finish()
    try:
        return load_canonical(bytes(raw))
    except ValueError as error:
        raise Damaged(f"{STATE_JSON} is not canonical JSON: {error}", file=STATE_JSON) from error


def _check_complete(manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
    for key, entry in manifest.tensors.items():
        if len(entry.shards) != 1 or entry.shards[0].shape != entry.shape:
            raise Unsupported(
                f"tensor '{key}' lies in {len(entry.shards)} shards; this version reads whole ones"
            )
        if key not in tensors:
            raise Damaged(f"tensor '{key}' is in the manifest but in no file")
    for second, first in manifest.aliases.items():
        if first not in tensors:
            raise Damaged(f"'{second}' stands for '{first}', which is not stored")
