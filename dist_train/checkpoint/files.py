"""Weights alone, as one safetensors file that any tool opens."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from dist_train.checkpoint.agreement import on_rank_zero
from dist_train.checkpoint.layout import MANIFEST
from dist_train.checkpoint.memory import host
from dist_train.checkpoint.modules import fit_module, load_module, module_state
from dist_train.checkpoint.owner import current_control
from dist_train.checkpoint.reader import read_checkpoint
from dist_train.checkpoint.restore import module_tensors
from dist_train.checkpoint.state import MAIN
from dist_train.checkpoint.storage import durable_file, make_directory, remove_tree, sync_directory
from dist_train.checkpoint.tensorfile import TensorFile, read_plain
from dist_train.errors import CheckpointError, CheckpointWriteError, NotFoundError

logger = logging.getLogger(__name__)

_WRAPPERS = ("module.", "_orig_mod.")
# Words of the header that are no names of tensors.
_NOT_ALIASES = ("format", "prefix")


def save_model(model: nn.Module, path: str | Path) -> None:
    """Write the weights under the plain module's names, atomically (collective; rank 0 writes).

    Tied tensors are stored once; the header names the other, as safetensors' own save_model does.

    Args:
        model: wrapped or not.
        path: the file, by custom called *.safetensors.

    Raises:
        CheckpointError: a part of the model cannot be stored; CheckpointWriteError: the disk refused.
    """
    control = current_control()
    on_rank_zero(control, lambda: _write(model, Path(path)))
    control.barrier()


def _write(model: nn.Module, path: Path) -> None:
    found = module_state(model)
    if found.extra:
        raise CheckpointError(
            f"'{min(found.extra)}' is no tensor, and a safetensors file holds nothing else",
            mend="save with CheckpointManager, which keeps it in state.json",
        )
    tensors = {name: host(t) for name, t in found.tensors.items() if name not in found.aliases}
    file = TensorFile(tensors, {**found.aliases, "format": "pt"})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_directory(path.parent)
        remove_tree(temporary)
        with durable_file(temporary) as write:
            file.write(write)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        remove_tree(temporary)
        raise CheckpointWriteError(
            f"the model could not be written: {error.filename or path}: {error.strerror}",
            mend=f"the file needs {file.bytes:,} bytes; what was at {path} before is still there",
        ) from error


def load_model(path: str | Path, model: nn.Module) -> None:
    """Put weights into a model: from a safetensors file, or from a checkpoint directory.

    Leading `module.` and `_orig_mod.` (of DDP and torch.compile) are dropped where the model itself has no
    such names; that is said in the log. Checkpoints are verified first. Not collective.

    Raises:
        NotFoundError: nothing is there; CheckpointError: damaged, or it does not fit (naming the nearest).
    """
    path = Path(path)
    if not path.exists():
        raise NotFoundError(f"no file or checkpoint {path}")
    given = _from_checkpoint(path) if path.is_dir() else _from_file(path)
    expected = module_state(model)
    if expected.extra:
        raise CheckpointError(f"{path} cannot hold '{min(expected.extra)}', which is no tensor")
    load_module(model, fit_module(model, _stripped(given, expected.tensors), str(path)), {})


def _from_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    if not (path / MANIFEST).exists():
        raise NotFoundError(
            f"{path} is no checkpoint: it has no {MANIFEST}", mend="give one step-<n> directory"
        )
    loaded = read_checkpoint(path)
    modules = [key for key, entry in loaded.entries.items() if entry["kind"] == "module"]
    if MAIN not in modules and len(modules) != 1:
        raise CheckpointError(
            f"{path} has no entry '{MAIN}', but {', '.join(sorted(modules)) or 'no module'}"
        )
    return module_tensors(MAIN if MAIN in modules else modules[0], loaded)


def _from_file(path: Path) -> dict[str, torch.Tensor]:
    header, tensors = read_plain(path)
    aliases = {second: first for second, first in header.metadata.items() if second not in _NOT_ALIASES}
    return tensors | {second: tensors[first] for second, first in aliases.items() if first in tensors}


def _stripped(given: Mapping[str, torch.Tensor], expected: Mapping[str, object]) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    changed = 0
    for name, tensor in given.items():
        plain = name if name in expected else _strip(name)
        if plain in out:
            raise CheckpointError(
                f"two names become '{plain}' without their leading {' and '.join(_WRAPPERS)}"
            )
        changed += plain != name
        out[plain] = tensor
    if changed:
        logger.info("dropped leading %s from %s names", " and ".join(_WRAPPERS), changed)
    return out


def _strip(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.split(".", 1)[1]
    return name
