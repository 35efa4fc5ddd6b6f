"""Read a whole checkpoint: every byte is verified before any is returned."""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dist_train.checkpoint.format.canonical_json import load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.hash_threads import hash_threads
from dist_train.checkpoint.format.layout import STATE_JSON, TENSOR_FILE
from dist_train.checkpoint.format.manifest import FileEntry, Manifest
from dist_train.checkpoint.format.node_memory import SharedMemory
from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.format.tensor_file import PREFIX, read_tensors
from dist_train.checkpoint.format.tensor_memory import OwnMemory, TensorMemory
from dist_train.checkpoint.store.checkpoint_names import read_manifest
from dist_train.checkpoint.store.sharded_reader import (
    ShardedReader,
    StoredTensor,
    files_of_parts,
    sharded_keys,
)
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import check_file, open_verified, read_committed
from dist_train.jobs.frozen_imports import without_collector

# A checkpoint's manifest -> where its tensors are put; None: each is read when it is asked for.
MemoryFor = Callable[[Manifest], TensorMemory | None]


class LoadedTensors(Mapping[str, torch.Tensor]):
    """The tensors of a checkpoint by manifest key: in memory; sharded ones are read when they are asked for.

    Args:
        in_memory: those that were read.
        reader: of the sharded ones.
        sharded: their keys.
    """

    def __init__(
        self, in_memory: Mapping[str, torch.Tensor], reader: ShardedReader, sharded: Sequence[str]
    ) -> None:
        self.in_memory = in_memory
        self._sharded = {key: StoredTensor(reader, key) for key in sharded}

    def __getitem__(self, key: str) -> torch.Tensor:
        found = self.stored(key)
        return found.read() if isinstance(found, StoredTensor) else found

    def stored(self, key: str) -> torch.Tensor | StoredTensor:
        """Return a tensor, or what reads it."""
        return self._sharded[key] if key in self._sharded else self.in_memory[key]

    def __contains__(self, key: object) -> bool:
        return key in self.in_memory or key in self._sharded

    def __iter__(self) -> Iterator[str]:
        yield from self.in_memory
        yield from self._sharded

    def __len__(self) -> int:
        return len(self.in_memory) + len(self._sharded)


@dataclass(frozen=True)
class LoadedCheckpoint:
    """A verified checkpoint, copied into memory, but for tensors that are read when they are asked for.

    Args:
        name: its name in the storage, `step-00000007`.
        location: its path or URL.
        manifest: its manifest.
        tensors: manifest key -> tensor; aliases are not expanded.
        entries: state key -> {kind, content}, from state.json.
        reserved: what save() stores for its own use: score, seed.
        is_shared: the memory of `tensors` is mapped by other ranks of this node, too.
        shared: this memory, on the rank that has read it.
    """

    name: str
    location: str
    manifest: Manifest
    tensors: LoadedTensors
    entries: Mapping[str, Any]
    reserved: Mapping[str, Any]
    is_shared: bool = False
    shared: SharedMemory | None = None

    def below(self, prefix: str) -> dict[str, torch.Tensor]:
        """Return the tensors below `prefix`/ by the rest of their key, tied ones under both names."""
        found = self.stored_below(prefix)
        return {name: one.read() if isinstance(one, StoredTensor) else one for name, one in found.items()}

    def stored_below(self, prefix: str) -> dict[str, torch.Tensor | StoredTensor]:
        """The same; sharded ones are not read."""
        start = f"{prefix}/"
        sources = {key: key for key in self.tensors} | self.manifest.aliases
        return {
            key[len(start) :]: self.tensors.stored(source)
            for key, source in sources.items()
            if key.startswith(start)
        }


def own_memory(_: Manifest) -> TensorMemory:
    """Put tensors into memory of this process."""
    return OwnMemory()


def read_when_asked(_: Manifest) -> None:
    """Put no tensor into memory."""


def read_checkpoint(
    storage: CheckpointStorage,
    name: str,
    memory_for: MemoryFor = own_memory,
    *,
    verify_parts: bool = True,
) -> LoadedCheckpoint:
    """Read and verify everything; sharded tensors are verified, and read when they are asked for.

    Args:
        storage: where it is.
        name: its name.
        memory_for: where the other tensors are put; nowhere, and they too are read when they are asked for.
        verify_parts: False where the caller verifies the files of sharded tensors.

    Raises:
        DamagedCheckpoint: naming the file and block.
        UnsupportedCheckpoint: a later version wrote it.
    """
    manifest = read_committed(storage, name, read_manifest)
    memory = memory_for(manifest)
    tensors: dict[str, torch.Tensor] = {}
    state: Any = None
    of_parts = files_of_parts(manifest)
    for entry in manifest.files:
        try:
            if memory is not None and entry.name.endswith(TENSOR_FILE) and entry.name not in of_parts:
                tensors |= _read_tensor_file(storage, name, entry, manifest, memory)
            elif entry.name == STATE_JSON:
                state = _read_state(storage, name, entry)
            elif verify_parts or entry.name not in of_parts:
                check_file(storage, name, entry)
        except OSError as error:
            if error.errno != errno.EIO and not isinstance(error, FileNotFoundError):
                raise
            raise DamagedCheckpoint(f"{entry.name}: {error.strerror or error}", file=entry.name) from error
    loaded = in_memory_and_sharded(storage, name, manifest, tensors, none_in_memory=memory is None)
    _check_complete(manifest, loaded)
    if not isinstance(state, dict) or set(state) != {"entries", "reserved"}:
        raise DamagedCheckpoint(f"{STATE_JSON} is not what save() writes", file=STATE_JSON)
    shared = memory if isinstance(memory, SharedMemory) else None
    return LoadedCheckpoint(
        name,
        storage.locate(name),
        manifest,
        loaded,
        state["entries"],
        state["reserved"],
        is_shared=shared is not None,
        shared=shared,
    )


def _read_tensor_file(
    storage: CheckpointStorage, name: str, entry: FileEntry, manifest: Manifest, memory: TensorMemory
) -> dict[str, torch.Tensor]:
    try:
        # What shared memory fills is overwritten by the next bytes.
        own = isinstance(memory, OwnMemory)
        with (
            hash_threads(entry.bytes if own else 0) as threads,
            open_verified(storage, name, entry, threads) as reader,
        ):
            header, tensors = read_tensors(reader, memory)
    except DamagedCheckpoint as error:
        if error.block is None:
            # A header that makes no sense is the effect; name the block that is the cause.
            check_file(storage, name, entry)
        raise
    prefix = header.metadata.get(PREFIX, "")
    found = {prefix + key: tensor for key, tensor in tensors.items()}
    for key, tensor in found.items():
        listed = manifest.tensors.get(key)
        if listed is None or listed.shards[0].file != entry.name:
            raise DamagedCheckpoint(
                f"{entry.name} holds a tensor '{key}' that the manifest does not place there"
            )
        if (listed.dtype, listed.shape) != (dtype_name(tensor.dtype), list(tensor.shape)):
            raise DamagedCheckpoint(
                f"{entry.name}: tensor '{key}' has another dtype or shape than in the manifest"
            )
    return found


@without_collector()
def _read_state(storage: CheckpointStorage, name: str, entry: FileEntry) -> object:
    raw = bytearray(entry.bytes)
    with open_verified(storage, name, entry) as reader:
        reader.read_into(memoryview(raw))
        reader.finish()
    try:
        return load_canonical(bytes(raw))
    except ValueError as error:
        raise DamagedCheckpoint(f"{STATE_JSON} is not canonical JSON: {error}", file=STATE_JSON) from error


def in_memory_and_sharded(
    storage: CheckpointStorage,
    name: str,
    manifest: Manifest,
    tensors: Mapping[str, torch.Tensor],
    *,
    none_in_memory: bool = False,
) -> LoadedTensors:
    """Return the tensors of a checkpoint of which the whole ones are in memory, or none."""
    keys = sharded_keys(manifest, whole_too=none_in_memory)
    return LoadedTensors(tensors, ShardedReader(storage, name, manifest), keys)


def _check_complete(manifest: Manifest, tensors: Container[str]) -> None:
    for key in manifest.tensors:
        if key not in tensors:
            raise DamagedCheckpoint(f"tensor '{key}' is in the manifest but in no file")
    for second, first in manifest.aliases.items():
        if first not in tensors:
            raise DamagedCheckpoint(f"'{second}' is an alias of '{first}', which is not stored")
