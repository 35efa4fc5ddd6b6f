"""Convert weights between file formats: write, read back, compare by hash, then rename into place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dist_train.checkpoint.format.hashing import weights_hash
from dist_train.checkpoint.format.tensor_bytes import check_storable
from dist_train.checkpoint.state.module_state import tied_names
from dist_train.checkpoint.weights.import_weights import Weights, choose_weights, open_weights
from dist_train.checkpoint.weights.model_io import weights_file
from dist_train.checkpoint.weights.prefixes import drop_shared
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.rundir.durable_files import durable_file, link_new, make_directory, remove_tree

SAFETENSORS = ".safetensors"
TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")

Save = Callable[[Path], None]


def import_weights(
    source: Path, target: Path, *, entry: str | None = None, keep_names: bool = False
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
    names = {name: name for name in found.tensors}
    dropped = None
    if not keep_names and not source.is_dir():
        renamed = drop_shared([*found.tensors, *found.extra])
        names, dropped = renamed.names, renamed.description()
    weights = Weights(
        {names[name]: tensor for name, tensor in found.tensors.items()},
        found.extra,
        found.origin,
        found.unused,
    )
    return {**_convert(weights, source, target), "dropped": dropped}


def export_weights(source: Path, target: Path, *, entry: str | None = None) -> dict[str, Any]:
    """Write a checkpoint's model as a safetensors file or, by the target's suffix, as a torch.save file.

    Plain torch opens the latter with weights_only=True.

    Args:
        source: a checkpoint, a folder of them (the newest whole one is taken), or a weights file.
        target: the new file; it must not exist.
        entry: which part of the source holds the weights, where several could.

    Raises:
        CheckpointError: nothing whole to export, or the target exists.
    """
    refuse_existing(target)
    found, chosen = choose_weights(source, entry)
    manifest = found.manifest
    if manifest is not None and weights_hash(found.tensors, manifest.version) != manifest.weights_hash:
        raise CheckpointError(f"the weights of {chosen} are not those of its manifest's weights_hash")
    return _convert(found, chosen, target)


def refuse_existing(target: Path) -> None:
    """Raise CheckpointError where the target exists: nothing is overwritten."""
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"{target} exists already", hint="give another --out, or remove it first")


def _convert(weights: Weights, source: Path, target: Path) -> dict[str, Any]:
    for name, tensor in weights.tensors.items():
        check_storable(name, tensor)
    wanted = weights_hash(weights.tensors)
    save = _safetensors(weights, source) if target.suffix == SAFETENSORS else _torch_file(weights)
    _place(target, save, wanted)
    return {
        "source": str(source),
        "path": str(target),
        "tensors": len(weights.tensors),
        "bytes": target.stat().st_size,
        "weights_hash": wanted,
        "origin": weights.origin,
        "left": list(weights.unused),
    }


def _safetensors(weights: Weights, source: Path) -> Save:
    if weights.extra:
        raise CheckpointError(
            f"'{min(weights.extra)}' in {source} is no tensor, and a safetensors file holds nothing else",
            hint="give --out a name that ends in .pt, or load_model(path, model) as it is",
        )
    file = weights_file(weights.tensors, tied_names(weights.tensors))

    def save(path: Path) -> None:
        with durable_file(path) as write:
            file.write(write)

    return save


def _torch_file(weights: Weights) -> Save:
    def save(path: Path) -> None:
        with open(path, "xb") as file:
            try:
                torch.save({**weights.tensors, **weights.extra}, file)
            except RuntimeError as error:
                # torch's own report of a full disk hides the system's.
                raise _system_error(error) from error
            file.flush()
            os.fsync(file.fileno())

    return save


def _system_error(error: BaseException) -> BaseException:
    """Return the OSError that caused an error; the error itself where there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error


def _place(target: Path, save: Save, wanted: str) -> None:
    """Write beside the target, read back, compare, and only then rename."""
    # The suffix stays: it decides how the file is read back.
    temporary = target.with_name(f".{os.getpid()}.tmp.{target.name}")
    try:
        make_directory(target.parent)
        remove_tree(temporary)
        save(temporary)
        _check(target, weights_hash(open_weights(temporary).tensors), wanted)
        link_new(temporary, target)
    except FileExistsError:
        refuse_existing(target)
        raise
    except OSError as error:
        raise CheckpointWriteError(
            f"{target} could not be written: {error.strerror}", hint="no file is left there"
        ) from error
    finally:
        remove_tree(temporary)


def _check(target: Path, found: str, wanted: str) -> None:
    if found != wanted:
        raise CheckpointWriteError(
            f"{target} was written and read back, and is not the same: {found}, not {wanted}",
            cause="the disk or the memory of this machine is at fault",
        )
