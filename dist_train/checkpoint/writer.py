"""Writing one checkpoint: plan the bytes, look for room, stage, hash, publish."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

from dist_train.checkpoint.blocks import BLOCK_BYTES, hash_bytes
from dist_train.checkpoint.commit import publish
from dist_train.checkpoint.draft import Draft
from dist_train.checkpoint.layout import MANIFEST, STATE_JSON, staging_name, step_directories
from dist_train.checkpoint.manifest import FileEntry, Manifest, Shard, TensorEntry
from dist_train.checkpoint.memory import dtype_name
from dist_train.checkpoint.reader import PREFIX, TENSOR_FILE
from dist_train.checkpoint.storage import (
    durable_file,
    free_bytes,
    make_directory,
    remove_tree,
    sync_directory,
    write_durable,
)
from dist_train.checkpoint.tensorfile import TensorFile
from dist_train.errors import CheckpointWriteError

# For the manifest's hashes, and blocks that are only partly filled.
SLACK_BYTES = 64 << 10
_RANKS = "ranks"


def write_checkpoint(directory: Path, draft: Draft) -> Manifest:
    """Commit a draft; the manifest that stands in the end (an equal checkpoint may have been there).

    Raises:
        CheckpointWriteError: nothing was committed, nothing is left behind, older ones stay.
    """
    files = _plan(draft.tensors)
    needed = sum(file.bytes for _prefix, file in files.values()) + len(draft.state_json) + SLACK_BYTES
    needed += needed // BLOCK_BYTES * 40
    step = draft.manifest.step
    staging = directory / staging_name(step, draft.manifest.attempt)
    try:
        make_directory(directory)
        remove_tree(staging)
        _look_for_room(directory, step, needed)
        os.mkdir(staging)
        manifest = _stage(staging, draft, files)
        return publish(directory, staging, manifest)
    except BaseException as error:
        with suppress(OSError):
            remove_tree(staging)
        if isinstance(error, OSError):
            raise write_failed(error, directory, f"the checkpoint of step {step}", needed) from error
        raise


def _plan(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, TensorFile]]:
    """File name -> (what its names leave out of the manifest's keys, its bytes)."""
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for key, tensor in tensors.items():
        first = key.split("/", 1)[0]
        parts.setdefault(_RANKS if first.removeprefix("rank").isdigit() else first, {})[key] = tensor
    files = {}
    for part, inside in sorted(parts.items()):
        # Plain names, so that any safetensors reader gets what a plain module's load_state_dict takes.
        prefix = "" if part == _RANKS else f"{part}/"
        named = {key[len(prefix) :]: tensor for key, tensor in inside.items()}
        files[part + TENSOR_FILE] = (prefix, TensorFile(named, {"format": "pt", PREFIX: prefix}))
    return files


def _stage(staging: Path, draft: Draft, files: Mapping[str, tuple[str, TensorFile]]) -> Manifest:
    entries = []
    for name, (_prefix, file) in files.items():
        with _blamed(staging / name), durable_file(staging / name) as write:
            entries.append(FileEntry(name=name, bytes=file.bytes, xxh3_128=file.write(write)))
    digests = hash_bytes(draft.state_json)
    entries.append(FileEntry(name=STATE_JSON, bytes=len(draft.state_json), xxh3_128=digests))
    with _blamed(staging / STATE_JSON):
        write_durable(staging / STATE_JSON, draft.state_json)
    placed = {key: _entry(key, tensor, files) for key, tensor in draft.tensors.items()}
    manifest = draft.manifest.model_copy(update={"tensors": placed, "files": entries}).sealed()
    with _blamed(staging / MANIFEST):
        write_durable(staging / MANIFEST, manifest.to_bytes())
    sync_directory(staging)
    return manifest


def _entry(key: str, tensor: torch.Tensor, files: Mapping[str, object]) -> TensorEntry:
    own = key.split("/", 1)[0] + TENSOR_FILE
    shape = list(tensor.shape)
    shard = Shard(file=own if own in files else _RANKS + TENSOR_FILE, offset=[0] * len(shape), shape=shape)
    return TensorEntry(dtype=dtype_name(tensor.dtype), shape=shape, shards=[shard])


class _blamed:  # noqa: N801 - reads as a word in `with`
    """Adds the path to an OSError that has none: write, fsync and close know only a number."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self.path)


def _look_for_room(directory: Path, step: int, needed: int) -> None:
    free = free_bytes(directory)
    if free < needed:
        raise CheckpointWriteError(
            f"the checkpoint of step {step} needs {needed:,} bytes; {directory} has {free:,} bytes free",
            cause="nothing is deleted to make room",
            mend=_mend(directory, "make room"),
        )


def write_failed(error: OSError, directory: Path, thing: str, needed: int = 4096) -> CheckpointWriteError:
    """The error for a write that the operating system refused; says what stays and what mends it."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    what = f"{thing} could not be written: {error.filename or directory}: {reason}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointWriteError(what, mend=_mend(directory, "mend that"))
    try:
        free = f"{free_bytes(directory):,}"
    except OSError:
        free = "an unknown number of"
    quota = " (a quota may allow less)" if error.errno == errno.EDQUOT else ""
    return CheckpointWriteError(
        what,
        cause=f"it needs {needed:,} bytes and {free} bytes are free{quota}; nothing is deleted to make room",
        mend=_mend(directory, "make room"),
    )


def _mend(directory: Path, act: str) -> str:
    steps = [step for step, path in step_directories(directory).items() if (path / MANIFEST).exists()]
    stays = (
        f"the last good checkpoint (step {steps[-1]}) stays" if steps else "there was no checkpoint before it"
    )
    return f"{stays}; {act} and resume"
