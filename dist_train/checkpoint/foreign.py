"""Weights from anywhere: our checkpoints, safetensors, torch.save; the content decides, not the name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dist_train.checkpoint.encoding import decode
from dist_train.checkpoint.layout import MANIFEST, parse_step, step_directories
from dist_train.checkpoint.locate import newest_good
from dist_train.checkpoint.manifest import Manifest
from dist_train.checkpoint.reader import Loaded, read_checkpoint
from dist_train.checkpoint.restore import module_tensors
from dist_train.checkpoint.state import MAIN
from dist_train.checkpoint.statedict import find_state_dict
from dist_train.checkpoint.tensorfile import read_plain
from dist_train.checkpoint.torchfile import read_torch_file
from dist_train.errors import CheckpointError, NotFoundError

# Words of a safetensors header that are no names of tensors.
_NOT_ALIASES = ("format", "prefix")
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"


@dataclass(frozen=True)
class Weights:
    """What was found in a file or checkpoint, in the memory of this machine.

    Args:
        tensors: by the names that stand there, tied ones under each.
        extra: what is no tensor (a module's get_extra_state).
        origin: what it was found in, for the log.
        left: what else lies there.
        manifest: of a checkpoint of ours.
    """

    tensors: dict[str, torch.Tensor]
    extra: dict[str, Any]
    origin: str
    left: tuple[str, ...] = field(default=())
    manifest: Manifest | None = None


def open_weights(path: Path, entry: str | None = None) -> Weights:
    """Read weights; a checkpoint is verified first, and nothing is unpickled.

    Args:
        path: a checkpoint directory, a safetensors file or a file of torch.save.
        entry: which part holds the weights, where several do.

    Raises:
        NotFoundError: nothing is there; CheckpointError: damaged, unsafe, or no weights in it.
    """
    try:
        if not path.exists():
            raise NotFoundError(f"no file or checkpoint {path}")
        if path.is_dir():
            return _checkpoint(path, entry)
        with open(path, "rb") as file:
            head = file.read(16)
    except PermissionError as error:
        raise NotFoundError(f"{error.filename or path} may not be read: {error.strerror}") from error
    if head.startswith((_ZIP, _PICKLE)) or (path.suffix in _TORCH_SUFFIXES and not _is_safetensors(head)):
        return _torch_file(path, entry)
    return _safetensors(path, entry)


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{"


def _checkpoint(path: Path, entry: str | None) -> Weights:
    if not (path / MANIFEST).exists():
        raise NotFoundError(f"{path} is no checkpoint: it has no {MANIFEST}", mend=_instead(path))
    return _of_checkpoint(read_checkpoint(path), entry)


def choose_weights(path: Path, entry: str | None = None) -> tuple[Weights, Path]:
    """`open_weights`, where `path` may be a folder of checkpoints too: its newest whole one is taken.

    The folder is left as it is, also where newer ones are damaged.

    Returns:
        The weights, and the checkpoint or file that they are of.

    Raises:
        NotFoundError: there is no checkpoint; CheckpointError: none of them can be used.
    """
    if not path.is_dir() or (path / MANIFEST).exists() or parse_step(path.name) is not None:
        return open_weights(path, entry), path
    return _newest(path, entry)


def _newest(folder: Path, entry: str | None) -> tuple[Weights, Path]:
    loaded = newest_good(folder, set_aside=False)
    if loaded is None:
        raise NotFoundError(f"there is no checkpoint in {folder}")
    return _of_checkpoint(loaded, entry), loaded.path


def _of_checkpoint(loaded: Loaded, entry: str | None) -> Weights:
    path, modules = loaded.path, sorted(k for k, part in loaded.entries.items() if part["kind"] == "module")
    if entry is None and MAIN not in modules and len(modules) != 1:
        raise CheckpointError(f"{path} has no entry '{MAIN}', but {', '.join(modules) or 'no module'}")
    if entry is not None and entry not in modules:
        raise CheckpointError(f"{path} has no module '{entry}', but {', '.join(modules) or 'none'}")
    key = entry or (MAIN if MAIN in modules else modules[0])
    return Weights(
        module_tensors(key, loaded),
        decode(loaded.entries[key]["content"]["extra"], loaded.tensors),
        f"checkpoint of step {loaded.manifest.step}, entry '{key}'",
        tuple(sorted(set(loaded.entries) - {key})),
        loaded.manifest if key == MAIN or len(modules) == 1 else None,
    )


def _instead(path: Path) -> str:
    if (path / ".metadata").exists():
        command = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
        return f"torch.distributed.checkpoint wrote it; it needs pickle: {command} {path} weights.pt"
    for folder in (path, path / "checkpoints"):
        steps = list(step_directories(folder).values())
        if steps:
            return f"did you mean {steps[-1]}?"
    files = sorted(file.name for file in path.iterdir() if file.suffix in (".safetensors", *_TORCH_SUFFIXES))
    return f"did you mean {path / files[0]}?" if len(files) == 1 else "give one step-<n> directory, or a file"


def _safetensors(path: Path, entry: str | None) -> Weights:
    if entry is not None:
        raise CheckpointError(
            f"{path} is a safetensors file, which has no entry '{entry}': it is one state dict"
        )
    header, tensors = read_plain(path)
    aliases = {
        second: first
        for second, first in header.metadata.items()
        if second not in _NOT_ALIASES and second not in tensors and first in tensors
    }
    tied = {second: tensors[first] for second, first in aliases.items()}
    return Weights(tensors | tied, {}, "safetensors")


def _torch_file(path: Path, entry: str | None) -> Weights:
    found = find_state_dict(read_torch_file(path), str(path), entry)
    tensors = {name: value for name, value in found.state.items() if isinstance(value, torch.Tensor)}
    extra = {name: value for name, value in found.state.items() if name not in tensors}
    origin = f"torch.save, entry '{found.entry}'" if found.entry else "torch.save"
    return Weights(tensors, extra, origin, found.left)
