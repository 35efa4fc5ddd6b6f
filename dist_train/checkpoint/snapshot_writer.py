"""Write one checkpoint: plan the files, check the free space, stage, hash, publish."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

import torch

from dist_train.checkpoint.format.block_hashes import file_entry
from dist_train.checkpoint.format.blocks import BLOCK_BYTES, hash_bytes
from dist_train.checkpoint.format.hash_threads import HashThreads
from dist_train.checkpoint.format.layout import (
    MANIFEST,
    STATE_JSON,
    TENSOR_FILE,
    blocks_name,
    staging_name,
)
from dist_train.checkpoint.format.manifest import FileEntry, Manifest
from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.format.tensor_entries import Shard, TensorEntry
from dist_train.checkpoint.format.tensor_file import TensorFile
from dist_train.checkpoint.state.snapshot import Snapshot
from dist_train.checkpoint.store.checkpoint_names import committed_steps, note_written
from dist_train.checkpoint.store.commit import publish
from dist_train.checkpoint.store.reader import PREFIX
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import note_reserved
from dist_train.errors import CheckpointWriteError
from dist_train.jobs.frozen_imports import without_collector

# For the manifest's hashes, and blocks that are only partly filled.
SLACK_BYTES = 64 << 10
_RANKS = "ranks"
# Begins the keys of what is a rank's own, or of a data coordinate.
_OWN = re.compile(r"(rank|data)\d+")


def write_checkpoint(
    storage: CheckpointStorage, snapshot: Snapshot, threads: HashThreads, after: int | None = None
) -> Manifest:
    """Commit a snapshot; return the manifest that is there in the end (an equal one may have been there).

    Args:
        storage: where to.
        snapshot: what.
        threads: hash what is written next.
        after: the step that the run went on from, as `publish` takes it.

    Raises:
        CheckpointWriteError: nothing was committed, nothing is left behind, older ones stay.
    """
    files = _plan(snapshot)
    needed = sum(file.bytes for _prefix, file in files.values()) + len(snapshot.state_json) + SLACK_BYTES
    needed += needed // BLOCK_BYTES * 40
    step = snapshot.step
    staging = staging_name(step, snapshot.attempt)
    try:
        storage.prepare()
        storage.remove(staging)
        _check_free_space(storage, step, needed)
        storage.create_staging(staging)
        manifest = _stage(storage, staging, snapshot, files, threads)
        return publish(storage, staging, manifest, after)
    except BaseException as error:
        with suppress(OSError):
            storage.remove(staging)
        if isinstance(error, OSError):
            raise write_failed(error, storage, f"the checkpoint of step {step}", needed) from error
        raise


@without_collector()
def _plan(snapshot: Snapshot) -> dict[str, tuple[str, TensorFile]]:
    """Plan the files: name -> (the part of the manifest's keys that its own names leave out, its bytes)."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in snapshot.tensors.items():
        first = key.split("/", 1)[0]
        parts.setdefault(_RANKS if _OWN.fullmatch(first) else first, {})[key] = tensor
    files = {}
    for part, inside in sorted(parts.items()):
        # Plain names, so that any safetensors reader gets what a plain module's load_state_dict takes.
        prefix = "" if part == _RANKS else f"{part}/"
        named = {key[len(prefix) :]: tensor for key, tensor in inside.items()}
        views = {key[len(prefix) :]: snapshot.views[key] for key in inside}
        files[part + TENSOR_FILE] = (prefix, TensorFile(named, {"format": "pt", PREFIX: prefix}, views))
    return files


def _stage(
    storage: CheckpointStorage,
    staging: str,
    snapshot: Snapshot,
    files: Mapping[str, tuple[str, TensorFile]],
    threads: HashThreads,
) -> Manifest:
    entries = []
    for name, (_prefix, file) in files.items():
        with storage.new_file(f"{staging}/{name}") as write:
            digests = file.write(write, threads)
        entries.append(_listed(storage, staging, name, file.bytes, digests))
    _put(storage, staging, STATE_JSON, snapshot.state_json)
    digests = hash_bytes(snapshot.state_json)
    entries.append(_listed(storage, staging, STATE_JSON, len(snapshot.state_json), digests))
    with without_collector():
        weights = {key: digest.hex() for key, digest in snapshot.weight_digests().items()}
        placed = {
            key: _entry(key, tensor, files, weights.get(key, "")) for key, tensor in snapshot.tensors.items()
        }
        manifest, raw = snapshot.manifest(placed, entries).sealed_bytes()
    _put(storage, staging, MANIFEST, raw)
    note_written(manifest, raw)
    note_reserved(snapshot.state_json, snapshot.reserved)
    storage.seal(staging)
    return manifest


def _listed(
    storage: CheckpointStorage, staging: str, name: str, count: int, digests: Sequence[str]
) -> FileEntry:
    """The entry of a file that was written; where its block hashes are many, they are written beside it."""
    entry, blocks = file_entry(name, count, digests)
    if blocks:
        _put(storage, staging, blocks_name(name), blocks)
    return entry


def _put(storage: CheckpointStorage, staging: str, name: str, content: bytes) -> None:
    with storage.new_file(f"{staging}/{name}") as write:
        write(memoryview(content))


def _entry(key: str, tensor: torch.Tensor, files: Mapping[str, object], digest: str) -> TensorEntry:
    own = key.split("/", 1)[0] + TENSOR_FILE
    shape = list(tensor.shape)
    shard = Shard(file=own if own in files else _RANKS + TENSOR_FILE, offset=[0] * len(shape), shape=shape)
    return TensorEntry(dtype=dtype_name(tensor.dtype), shape=shape, shards=[shard], digest=digest)


def _check_free_space(storage: CheckpointStorage, step: int, needed: int) -> None:
    free = storage.free_bytes()
    if free is not None and free < needed:
        raise CheckpointWriteError(
            f"the checkpoint of step {step} needs {needed:,} bytes; "
            f"{storage.location} has {free:,} bytes free",
            cause="nothing is deleted to make room",
            hint=_hint(storage, "make room"),
        )


def write_failed(
    error: OSError, storage: CheckpointStorage, target: str, needed: int = 4096
) -> CheckpointWriteError:
    """Make the error for a write that the storage refused: what stays, and what to do about it."""
    reason = error.strerror or str(error)
    what = f"{target} could not be written: {error.filename or storage.location}: {reason}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointWriteError(what, hint=_hint(storage, "fix that"))
    try:
        free = storage.free_bytes()
    except OSError:
        free = None
    shown = "an unknown number of" if free is None else f"{free:,}"
    quota = " (a quota may allow less)" if error.errno == errno.EDQUOT else ""
    return CheckpointWriteError(
        what,
        cause=f"it needs {needed:,} bytes and {shown} bytes are free{quota}; nothing is deleted to make room",
        hint=_hint(storage, "make room"),
    )


def _hint(storage: CheckpointStorage, act: str) -> str:
    try:
        steps = committed_steps(storage)
    except OSError:
        return f"older checkpoints stay; {act} and resume"
    stays = (
        f"the last good checkpoint (step {steps[-1]}) stays" if steps else "there was no checkpoint before it"
    )
    return f"{stays}; {act} and resume"
