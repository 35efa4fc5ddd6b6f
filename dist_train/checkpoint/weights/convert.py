"""Convert weights between file formats: write, read back, compare by hash, then rename into place."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dist_train.checkpoint.format.hashing import Digested, weights_hash_of
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.state.collect import MAIN
from dist_train.checkpoint.weights.byte_pieces import hash_of_weights
from dist_train.checkpoint.weights.import_weights import Weights, choose_weights, open_weights
from dist_train.checkpoint.weights.output_formats import Save, check_storable_as, save_as
from dist_train.checkpoint.weights.prefixes import drop_shared
from dist_train.checkpoint.weights.weight_tensors import WeightTensors
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.rundir.durable_files import link_new, make_directory, remove_tree, sync_directory


def import_weights(
    source: Path | str, target: Path, *, entry: str | None = None, keep_names: bool = False
) -> dict[str, Any]:
    """Write the weights of any file as one safetensors file under the plain module's names.

    Wrapper parts in front are dropped where ALL names have them, since there is no model to compare with; not
    from a checkpoint of ours, whose names are the plain module's already.

    Args:
        source: what `open_weights` opens.
        target: the new file; it must not exist.
        entry: which part of the source holds the weights, where several could.
        keep_names: leave the names as they stand.

    Raises:
        CheckpointError: no weights in it, or some that safetensors cannot hold, or the target exists.
    """
    refuse_existing(target)
    found = open_weights(source, entry)
    dropped = None
    if not keep_names and not found.is_ours:
        renamed = drop_shared([*found.tensors, *found.extra])
        plain = {renamed.names[name]: tensor for name, tensor in found.tensors.stored.items()}
        found, dropped = replace(found, tensors=WeightTensors(plain)), renamed.description()
    return {**_convert(found, source, target), "dropped": dropped}


def export_weights(
    source: Path | str, target: Path, *, entry: str | None = None, max_shard_bytes: int | None = None
) -> dict[str, Any]:
    """Write a checkpoint's model as a safetensors file or, by the target's suffix, as a torch.save file.

    Plain torch opens the latter with weights_only=True. Of safetensors, one tensor at a time is in memory.

    Args:
        source: a checkpoint or a folder of them (the newest whole one is taken), also as a URL; or a weights
            file.
        target: the new file, or directory; it must not exist.
        entry: which part of the source holds the weights, where several could.
        max_shard_bytes: write a directory of safetensors files of at most this size, and their index.

    Raises:
        CheckpointError: nothing whole to export, or the target exists.
    """
    refuse_existing(target)
    found, chosen = choose_weights(source, entry)
    return _convert(found, chosen, target, max_shard_bytes)


def refuse_existing(target: Path) -> None:
    """Raise CheckpointError where the target exists: nothing is overwritten."""
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"{target} exists already", hint="give another --out, or remove it first")


def _convert(
    weights: Weights, source: Path | str, target: Path, max_shard_bytes: int | None = None
) -> dict[str, Any]:
    check_storable_as(weights, source, target, max_shard_bytes)
    if weights.manifest is not None and weights.manifest.version == 1:
        _compare(weights.manifest, hash_of_weights(weights.tensors, version=1), {}, source)
    wanted = _place(weights, source, target, save_as(weights, target, max_shard_bytes))
    return {
        "source": str(source),
        "path": str(target),
        "tensors": len(weights.tensors),
        "bytes": _bytes_of(target),
        "weights_hash": wanted,
        "origin": weights.origin,
        "left": list(weights.unused),
    }


def _bytes_of(target: Path) -> int:
    return sum(file.stat().st_size for file in (target.iterdir() if target.is_dir() else [target]))


def _place(weights: Weights, source: Path | str, target: Path, save: Save) -> str:
    """Write beside the target, read back, compare, and only then rename; return the weights_hash."""
    # The suffix stays: it decides how the file is read back.
    temporary = target.with_name(f".{os.getpid()}.tmp.{target.name}")
    try:
        make_directory(target.parent)
        remove_tree(temporary)
        digests = save(temporary)
        wanted = weights_hash_of(digests)
        if weights.manifest is not None and weights.manifest.version != 1:
            _compare(weights.manifest, wanted, digests, source)
        _check(target, hash_of_weights(open_weights(temporary).tensors), wanted)
        _publish(temporary, target)
    except FileExistsError:
        refuse_existing(target)
        raise
    except OSError as error:
        raise CheckpointWriteError(
            f"{target} could not be written: {error.strerror}", hint="no file is left there"
        ) from error
    finally:
        remove_tree(temporary)
    return wanted


def _compare(manifest: Manifest, found: str, digests: Mapping[str, Digested], source: Path | str) -> None:
    """Compare the weights that were read with the manifest."""
    if found == manifest.weights_hash:
        return
    listed = {name: manifest.tensors.get(f"{MAIN}/{name}") for name in digests}
    odd = [n for n, entry in listed.items() if entry and entry.digest not in ("", digests[n].digest.hex())]
    raise CheckpointError(
        f"the weights of {source} are not those of its manifest's weights_hash",
        cause=f"'{min(odd)}' has another digest" if odd else None,
    )


def _check(target: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise CheckpointWriteError(
            f"{target} was written and read back, and is not the same: {found}, not {wanted}",
            cause="the disk or the memory of this machine is at fault",
        )


def _publish(temporary: Path, target: Path) -> None:
    if not temporary.is_dir():
        link_new(temporary, target)
        return
    try:
        os.rename(temporary, target)
    except OSError as error:
        # What another process has put there meanwhile is not replaced; but for an empty directory.
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        raise
    sync_directory(target.parent)
