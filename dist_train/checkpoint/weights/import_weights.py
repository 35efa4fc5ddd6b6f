"""Open weights of any format: our checkpoints, safetensors, DCP and torch.save, by content, not by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from dist_train.checkpoint.format.layout import MANIFEST
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.state.collect import MAIN
from dist_train.checkpoint.state.encoding import decode
from dist_train.checkpoint.state.restore import module_tensors
from dist_train.checkpoint.store.checkpoint_names import is_there, step_names
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.find_latest import load_newest
from dist_train.checkpoint.store.open_storage import open_checkpoint, open_storage
from dist_train.checkpoint.store.reader import LoadedCheckpoint, read_checkpoint, read_when_asked
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights.dcp_directory import open_dcp, read_objects
from dist_train.checkpoint.weights.dcp_metadata import METADATA
from dist_train.checkpoint.weights.find_state_dict import find_state_dict
from dist_train.checkpoint.weights.safetensors_file import open_safetensors, second_names
from dist_train.checkpoint.weights.safetensors_index import find_index, open_index
from dist_train.checkpoint.weights.torch_file import read_torch_file
from dist_train.checkpoint.weights.weight_tensors import WeightTensors
from dist_train.errors import CheckpointError, NotFoundError
from dist_train.near_names import nearest
from dist_train.rundir.step_names import parse_step

# The entry of the callback `ema`: averages by the model's names (dist_train/trainer/callbacks/ema.py).
EMA = "ema"
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
# Of the first eight bytes of a pickle, read as the length of a header, the last are never 0.
_LONGEST_HEADER = 1 << 40


@dataclass(frozen=True)
class Weights:
    """The weights of a file or checkpoint.

    Args:
        tensors: by the names in the file, tied ones under each of theirs; those of torch.save in host memory,
            others are read when they are asked for.
        extra: entries that are not tensors (a module's get_extra_state).
        origin: the kind of file, for the log.
        unused: what else the file holds.
        manifest: that of our checkpoint.
        is_ours: of a checkpoint of ours: the names are the plain module's.
    """

    tensors: WeightTensors
    extra: dict[str, Any]
    origin: str
    unused: tuple[str, ...] = field(default=())
    manifest: Manifest | None = None
    is_ours: bool = False


def open_weights(path: Path | str, entry: str | None = None) -> Weights:
    """Read weights; a checkpoint is verified first, and nothing is unpickled.

    Args:
        path: a checkpoint directory, a safetensors file, an index of several or its directory, a file of
            torch.save, or a directory of torch.distributed.checkpoint (DCP); as text the URL of a checkpoint.
        entry: which part holds the weights, where several do.

    Raises:
        NotFoundError: nothing is there; CheckpointError: damaged, unsafe, or no weights in it.
    """
    if isinstance(path, str):
        return _at_url(path, entry)[0]
    try:
        if not path.exists():
            raise NotFoundError(f"no file or checkpoint {path}")
        if path.is_dir():
            return _directory(path, entry)
        if path.name == METADATA:
            return _dcp(path.parent, entry)
        if path.suffix == ".json":
            return _indexed(path, entry)
        with open(path, "rb") as file:
            head = file.read(16)
    except PermissionError as error:
        raise NotFoundError(f"{error.filename or path} may not be read: {error.strerror}") from error
    # Asked first: the length of a header may begin with the byte that a pickle begins with.
    if not _is_safetensors(head) and (head.startswith((_ZIP, _PICKLE)) or path.suffix in _TORCH_SUFFIXES):
        return _torch_file(path, entry)
    return _safetensors(path, entry)


def _is_safetensors(head: bytes) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < _LONGEST_HEADER


def _directory(path: Path, entry: str | None) -> Weights:
    if not (path / MANIFEST).exists():
        if (foreign := _foreign(path)) is None:
            raise NotFoundError(f"{path} is no checkpoint: it has no {MANIFEST}", hint=_instead(path))
        return open_weights(foreign, entry)
    return _of_checkpoint(read_checkpoint(*open_checkpoint(path), read_when_asked), entry)


def _foreign(folder: Path) -> Path | None:
    """What makes a directory one of another tool: an index of safetensors files, or DCP's metadata."""
    index, dcp = find_index(folder), folder / METADATA
    if not dcp.is_file():
        return index
    if index is not None:
        raise CheckpointError(
            f"{folder} holds an index of safetensors files and a checkpoint of torch.distributed.checkpoint",
            hint=f"say which one: {index} or {dcp}",
        )
    return dcp


def choose_weights(path: Path | str, entry: str | None = None) -> tuple[Weights, Path | str]:
    """`open_weights` for a path that may also be a folder of checkpoints: the newest whole one is taken.

    A URL is given as text.

    Damaged newer ones are not moved to quarantine/.

    Returns:
        The weights, and the checkpoint or file that they were read from.

    Raises:
        NotFoundError: there is no checkpoint; CheckpointError: none of them can be used.
    """
    if isinstance(path, str):
        return _at_url(path, entry)
    is_one = (path / MANIFEST).exists() or parse_step(path.name) is not None
    if not path.is_dir() or is_one or _foreign(path) is not None:
        return open_weights(path, entry), path
    return _newest(path, entry)


def _at_url(url: str, entry: str | None) -> tuple[Weights, str]:
    storage, name = open_checkpoint(url)
    if parse_step(name) is not None or storage.exists(f"{name}/{MANIFEST}"):
        if not is_there(storage, name):
            raise NotFoundError(f"there is no checkpoint {url}")
        loaded: LoadedCheckpoint | None = read_checkpoint(storage, name, read_when_asked)
    else:
        loaded = load_newest(open_storage(url), read_only=True, memory_for=read_when_asked)
    if loaded is None:
        raise NotFoundError(f"there is no checkpoint in {url}")
    return _of_checkpoint(loaded, entry), loaded.location


def _newest(folder: Path, entry: str | None) -> tuple[Weights, Path]:
    loaded = load_newest(FileStorage(folder), read_only=True, memory_for=read_when_asked)
    if loaded is None:
        raise NotFoundError(f"there is no checkpoint in {folder}")
    return _of_checkpoint(loaded, entry), folder / loaded.name


def _of_checkpoint(loaded: LoadedCheckpoint, entry: str | None) -> Weights:
    if entry == EMA and EMA in loaded.entries and MAIN in loaded.entries:
        return _averaged(loaded)
    path = loaded.location
    modules = sorted(k for k, part in loaded.entries.items() if part["kind"] == "module")
    if entry is None and MAIN not in modules and len(modules) != 1:
        raise CheckpointError(f"{path} has no entry '{MAIN}', but {', '.join(modules) or 'no module'}")
    if entry is not None and entry not in modules:
        there = [*modules, EMA] if EMA in loaded.entries and MAIN in loaded.entries else modules
        near = nearest(entry, there)
        raise CheckpointError(
            f"{path} has no module '{entry}', but {', '.join(there) or 'none'}",
            hint=f"did you mean '{near}'?" if near else None,
        )
    key = entry or (MAIN if MAIN in modules else modules[0])
    return Weights(
        WeightTensors(module_tensors(key, loaded)),
        decode(loaded.entries[key]["content"]["extra"], loaded.tensors),
        f"checkpoint of step {loaded.manifest.step}, entry '{key}'",
        tuple(sorted(set(loaded.entries) - {key})),
        loaded.manifest if key == MAIN or len(modules) == 1 else None,
        is_ours=True,
    )


def _averaged(loaded: LoadedCheckpoint) -> Weights:
    """The weights of the callback `ema`: the model's names, with the averages in place of its tensors."""
    averages, aliases = loaded.stored_below(EMA), loaded.manifest.aliases
    tensors = {}
    for name, tensor in module_tensors(MAIN, loaded).items():
        first = aliases.get(f"{MAIN}/{name}", f"{MAIN}/{name}").removeprefix(f"{MAIN}/")
        tensors[name] = averages.get(first, tensor)
    return Weights(
        WeightTensors(tensors),
        decode(loaded.entries[MAIN]["content"]["extra"], loaded.tensors),
        f"checkpoint of step {loaded.manifest.step}, entry '{EMA}'",
        tuple(sorted(set(loaded.entries) - {EMA})),
        is_ours=True,
    )


def _instead(path: Path) -> str:
    for folder in (path, path / "checkpoints"):
        steps = list(step_names(FileStorage(folder)).values())
        if steps:
            return f"did you mean {folder / steps[-1]}?"
    files = sorted(file.name for file in path.iterdir() if file.suffix in (".safetensors", *_TORCH_SUFFIXES))
    return f"did you mean {path / files[0]}?" if len(files) == 1 else "give one step-<n> directory, or a file"


def _safetensors(path: Path, entry: str | None) -> Weights:
    _refuse_entry(path, entry)
    reader = open_safetensors(path)
    tensors = reader.stored()
    aliases = second_names(reader.header.metadata, tensors)
    tied = {second: tensors[first] for second, first in aliases.items()}
    return Weights(WeightTensors(tensors | tied), {}, "safetensors")


def _indexed(path: Path, entry: str | None) -> Weights:
    _refuse_entry(path, entry)
    found = open_index(path)
    return Weights(WeightTensors(found.tensors), {}, "safetensors files with an index", found.unused)


def _refuse_entry(path: Path, entry: str | None) -> None:
    if entry is not None:
        raise CheckpointError(
            f"{path} is of the safetensors format, which has no entry '{entry}': it is one state dict"
        )


def _torch_file(path: Path, entry: str | None) -> Weights:
    return _of_record(read_torch_file(path), path, "torch.save", entry)


def _dcp(folder: Path, entry: str | None) -> Weights:
    return _of_record(open_dcp(folder), folder, "torch.distributed.checkpoint", entry)


def _of_record(record: object, path: Path, kind: str, entry: str | None) -> Weights:
    found = find_state_dict(record, str(path), entry)
    tensors = {name: one for name, one in found.state.items() if isinstance(one, Tensor | StoredTensor)}
    extra = read_objects({name: value for name, value in found.state.items() if name not in tensors})
    origin = f"{kind}, entry '{found.entry}'" if found.entry else kind
    return Weights(WeightTensors(tensors), extra, origin, found.unused)
