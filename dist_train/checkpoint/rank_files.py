"""The files of one rank: which tensors lie in which, and how they are written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from dist_train.checkpoint.format.block_hashes import file_entry
from dist_train.checkpoint.format.boxes import Box, tiling_fault
from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.hash_threads import HashThreads
from dist_train.checkpoint.format.hashing import Digested, digest_of_parts, digested, start_digests
from dist_train.checkpoint.format.layout import TENSOR_FILE, blocks_name
from dist_train.checkpoint.format.manifest import FileEntry
from dist_train.checkpoint.format.tensor_bytes import dtype_name, host
from dist_train.checkpoint.format.tensor_entries import Shard, TensorEntry, part_name
from dist_train.checkpoint.format.tensor_file import PREFIX, TensorFile
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import CheckpointError
from dist_train.jobs.frozen_imports import without_collector

_RANKS = "ranks"
# What rank 0 writes for all: keys that begin with a rank or a data coordinate. A rank's own state, which may
# be large, it writes itself.
_OWN = re.compile(r"(?:rank|data)\d+")
_OWN_STATE = re.compile(r"(rank\d+)/state")


@dataclass(frozen=True)
class PlannedFile:
    """One file that is to be written.

    Args:
        name: of the file.
        keys: the manifest keys of its tensors.
        undigested: manifest key -> bytes, of the tensors whose digest is not known yet.
        content: its bytes.
    """

    name: str
    keys: tuple[str, ...]
    undigested: Mapping[str, memoryview]
    content: TensorFile


@dataclass(frozen=True)
class PartToWrite:
    """A part of a sharded tensor that one rank writes.

    Args:
        shape: of the whole tensor.
        box: which part of it.
        values: the part.
    """

    shape: tuple[int, ...]
    box: Box
    values: torch.Tensor


@without_collector()
def plan_files(
    tensors: Mapping[str, torch.Tensor],
    views: Mapping[str, memoryview],
    known: Collection[str] = (),
    of_rank: int | None = None,
) -> list[PlannedFile]:
    """Plan the files of one rank.

    Args:
        tensors: manifest key -> `host` tensor.
        views: manifest key -> its bytes.
        known: the keys of those whose digests are known.
        of_rank: the tensors are this rank's parts of sharded ones.
    """
    parts: dict[str, list[str]] = {}
    for key in tensors:
        parts.setdefault(_part(key), []).append(key)
    files = []
    for part, keys in sorted(parts.items()):
        # Plain names, so that any safetensors reader gets what a plain module's load_state_dict takes.
        prefix = "" if part == _RANKS else f"{part}/"
        named = {key[len(prefix) :]: tensors[key] for key in keys}
        plain = {key[len(prefix) :]: views[key] for key in keys}
        # What a thread fills meanwhile: all else is equal on all ranks, so that nothing may change it.
        content = TensorFile(named, {"format": "pt", PREFIX: prefix}, plain, in_use=_is_own(part))
        undigested = {key: views[key] for key in keys if key not in known}
        name = part if of_rank is None else f"{part}.rank{of_rank}"
        files.append(PlannedFile(name + TENSOR_FILE, tuple(keys), undigested, content))
    return files


def _is_own(part: str) -> bool:
    return _OWN.fullmatch(part) is not None


def _part(key: str) -> str:
    """What the name of a tensor's file begins with."""
    if own := _OWN_STATE.match(key):
        return own[1]
    first = key.split("/", 1)[0]
    return _RANKS if _is_own(first) else first


class WrittenPart(NamedTuple):
    """A part of a sharded tensor that was written: its place, and XXH3-128 of its bytes."""

    dtype: str
    shape: list[int]
    shard: Shard
    digest: bytes

    @property
    def box(self) -> Box:
        """Which part of the tensor."""
        return Box(tuple(self.shard.offset), tuple(self.shard.shape))


@dataclass(frozen=True)
class WrittenFiles:
    """What the manifest says of the files of one rank.

    Args:
        files: their entries.
        tensors: manifest key -> entry, of the whole tensors in them.
        digests: manifest key -> digest, of the same.
        parts: manifest key -> this rank's parts of a sharded tensor.
    """

    files: tuple[FileEntry, ...]
    tensors: Mapping[str, TensorEntry]
    digests: Mapping[str, Digested]
    parts: Mapping[str, Sequence[WrittenPart]]

    def to_bytes(self) -> bytes:
        """Return what rank 0 gets."""
        tensors = {key: [entry, self.digests[key].digest.hex()] for key, entry in self.tensors.items()}
        parts = {key: [[*one[:3], one.digest.hex()] for one in some] for key, some in self.parts.items()}
        return json.dumps([[file.model_dump() for file in self.files], tensors, parts]).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> WrittenFiles:
        """Return what another rank has sent."""
        files, found, cut = json.loads(raw)
        tensors, digests = {}, {}
        for key, ((dtype, shape, shards, digest), own) in found.items():
            tensors[key] = TensorEntry(dtype, shape, [Shard(*shard) for shard in shards], digest)
            digests[key] = Digested(dtype, shape, bytes.fromhex(own))
        parts = {
            key: [
                WrittenPart(dtype, shape, Shard(*shard), bytes.fromhex(digest))
                for dtype, shape, shard, digest in some
            ]
            for key, some in cut.items()
        }
        return cls(tuple(FileEntry.model_validate(file) for file in files), tensors, digests, parts)


def write_file(
    storage: CheckpointStorage, staging: str, file: PlannedFile, threads: HashThreads
) -> tuple[FileEntry, Callable[[], dict[str, bytes]]]:
    """Write a planned file; return its entry, and what waits for the digests of its tensors.

    The threads digest them after all blocks are hashed: while the rest is written, and the disk waited for.
    """
    digests: list[Callable[[], dict[str, bytes]]] = []
    with storage.new_file(f"{staging}/{file.name}") as write:
        hashes = file.content.write(
            write, threads, then=lambda: digests.append(start_digests(file.undigested, threads))
        )
    return listed(storage, staging, file.name, file.content.bytes, hashes), digests[0]


def listed(
    storage: CheckpointStorage, staging: str, name: str, count: int, hashes: Sequence[str]
) -> FileEntry:
    """Return the entry of a file that was written; many block hashes are written beside it."""
    entry, blocks = file_entry(name, count, hashes)
    if blocks:
        put(storage, staging, blocks_name(name), blocks)
    return entry


def put(storage: CheckpointStorage, staging: str, name: str, content: bytes) -> None:
    """Write a small file."""
    with storage.new_file(f"{staging}/{name}") as write:
        write(memoryview(content))


def place(
    files: Sequence[PlannedFile], tensors: Mapping[str, torch.Tensor], digests: Mapping[str, str]
) -> dict[str, TensorEntry]:
    """Return the entries of tensors that each lie whole in one of the files.

    Args:
        files: all of them.
        tensors: manifest key -> tensor.
        digests: manifest key -> digest, of those whose digests the manifest holds.
    """
    entries = {}
    for file in files:
        for key in file.keys:
            shape = list(tensors[key].shape)
            shard = Shard(file=file.name, offset=[0] * len(shape), shape=shape)
            entries[key] = TensorEntry(dtype_name(tensors[key].dtype), shape, [shard], digests.get(key, ""))
    return entries


def write_own_files(
    storage: CheckpointStorage,
    staging: str,
    rank: int,
    tensors: Mapping[str, torch.Tensor],
    parts: Mapping[str, Sequence[PartToWrite]],
    threads: HashThreads,
) -> WrittenFiles:
    """Write what one rank holds: its own state, and its parts of sharded tensors.

    Args:
        storage: where to.
        staging: what rank 0 has created there.
        rank: this one.
        tensors: manifest key -> tensor.
        parts: manifest key -> parts.
        threads: hash what is written next.
    """
    on_host = {key: host(tensor) for key, tensor in tensors.items()}
    cut = {
        part_name(key, number): host(part.values)
        for key, some in parts.items()
        for number, part in enumerate(some)
    }
    files = plan_files(on_host, byte_views(on_host))
    files_of_parts = plan_files(cut, byte_views(cut), of_rank=rank)
    written = [write_file(storage, staging, file, threads) for file in (*files, *files_of_parts)]
    digests = {key: digest for _, wait in written for key, digest in wait().items()}
    file_of = {key: file.name for file in files_of_parts for key in file.keys}
    return WrittenFiles(
        tuple(entry for entry, _ in written),
        place(files, on_host, {}),
        digested(on_host, digests),
        {
            key: [
                WrittenPart(
                    dtype_name(part.values.dtype),
                    [*part.shape],
                    Shard(file_of[part_name(key, number)], [*part.box.offset], [*part.box.shape]),
                    digests[part_name(key, number)],
                )
                for number, part in enumerate(some)
            ]
            for key, some in parts.items()
        },
    )


def join_parts(
    key: str, parts: Sequence[WrittenPart], whole_digest: bytes | None
) -> tuple[TensorEntry, Digested]:
    """Return the entry of a sharded tensor and its digest, from what the ranks have written of it.

    Args:
        key: its name in the manifest.
        parts: of all ranks.
        whole_digest: XXH3-128 of the whole tensor's bytes, of a weight.

    Raises:
        CheckpointError: they do not make it whole.
    """
    ordered = sorted(parts, key=lambda part: part.box)
    dtype, shape = ordered[0].dtype, ordered[0].shape
    if fault := tiling_fault(shape, [part.box for part in ordered]):
        raise CheckpointError(f"what was written of '{key}' does not make the tensor: {fault}")
    digest = whole_digest or digest_of_parts({part.box: part.digest for part in ordered})
    stored = "" if whole_digest is None else whole_digest.hex()
    entry = TensorEntry(dtype, shape, [part.shard for part in ordered], stored)
    return entry, Digested(dtype, shape, digest)
