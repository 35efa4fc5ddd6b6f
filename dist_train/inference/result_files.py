"""Write results as JSON lines, .npy or .safetensors: complete and in order, or no file at all."""

from __future__ import annotations

import json
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from dist_train.checkpoint.format.tensor_bytes import host
from dist_train.checkpoint.format.tensor_file import TensorFile
from dist_train.errors import CheckpointWriteError, ConfigError
from dist_train.rundir.durable_files import (
    link_new,
    make_directory,
    remove_tree,
    unfinished_file,
)

SUFFIXES = (".jsonl", ".npy", ".safetensors")
STDOUT = "-"


class Output(ABC):
    """A file of results, which are added batch by batch in their order."""

    @abstractmethod
    def add(self, result: Any, targets: Any, count: int) -> None:
        """Add the results of `count` samples; `targets` where the data has them."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is left, after the last batch."""


class JsonLines(Output):
    """One object per sample: index, output, and target where it is one number per sample."""

    def __init__(self, file: _File) -> None:
        self._file = file
        self._index = 0

    def add(self, result: Any, targets: Any, count: int) -> None:
        """Write a line for each sample."""
        plain, truth = _plain(result, count), _numbers(targets, count)
        for row in range(count):
            record = {"index": self._index, "output": _row(plain, row)}
            if truth is not None:
                record["target"] = truth[row]
            self._file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            self._index += 1

    def finish(self) -> None:
        """Flush the last lines."""
        self._file.flush()


class Arrays(Output):
    """Arrays, kept in memory and written at the end: .npy for one tensor, .safetensors for named ones too."""

    def __init__(self, file: _File, suffix: str) -> None:
        self._file, self._suffix = file, suffix
        self._parts: dict[str, list[torch.Tensor]] = {}

    def add(self, result: Any, targets: Any, count: int) -> None:
        """Keep named tensors of `count` rows."""
        named = _named(result)
        if self._parts and named.keys() != self._parts.keys():
            raise ConfigError(
                f"the model returned {_joined_names(named)} here and {_joined_names(self._parts)} before"
            )
        if self._suffix == ".npy" and list(named) != ["output"]:
            raise ConfigError(
                f"the model returns {_joined_names(named)}, and a .npy file holds one array",
                hint="--output with .safetensors or .jsonl",
            )
        for name, tensor in named.items():
            if not tensor.shape or len(tensor) != count:
                raise _no_rows(tuple(tensor.shape), count)
            self._parts.setdefault(name, []).append(host(tensor))

    def finish(self) -> None:
        """Write all rows."""
        whole = {name: _joined(name, parts) for name, parts in self._parts.items()}
        if self._suffix == ".npy":
            (only,) = whole.values()
            # numpy has no bfloat16.
            np.save(self._file, (only.float() if only.dtype == torch.bfloat16 else only).numpy())
        else:
            TensorFile(whole, {"format": "pt"}).write(lambda piece: _write(self._file, piece))
        self._file.flush()


@contextmanager
def open_output(word: str) -> Iterator[Output]:
    """Open the file of `--output`; it is renamed into place when the block succeeds, else removed.

    Raises:
        ConfigError: it exists already, or its suffix is not a known format.
    """
    if word == STDOUT:
        lines = JsonLines(_File(sys.stdout.buffer, "stdout"))
        yield lines
        lines.finish()
        return
    path = Path(word)
    check_output(path)
    temporary = unfinished_file(path, os.getpid())
    with _write_errors(word):
        make_directory(path.parent)
        remove_tree(temporary)
        raw = open(temporary, "xb")  # noqa: SIM115  # closed below, where an error of closing has a name too
    try:
        file = _File(raw, word)
        output: Output = JsonLines(file) if path.suffix == ".jsonl" else Arrays(file, path.suffix)
        yield output
        output.finish()
        with _write_errors(word):
            os.fsync(raw.fileno())
            raw.close()
            link_new(temporary, path)
    finally:
        # After a write error it fails once more; the first error is being raised.
        with suppress(OSError):
            raw.close()
        remove_tree(temporary)


class _File:
    """A file whose write errors differ from those of what is computed between the writes."""

    def __init__(self, raw: IO[bytes], name: str) -> None:
        self._raw, self._name = raw, name

    def write(self, piece: bytes | memoryview) -> int:
        with _write_errors(self._name):
            return self._raw.write(piece)

    def flush(self) -> None:
        with _write_errors(self._name):
            self._raw.flush()


@contextmanager
def _write_errors(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise  # the reader has closed the pipe (`… | head`)
    except FileExistsError:
        raise _exists(name) from None
    except OSError as error:
        raise CheckpointWriteError(f"{name} could not be written: {error.strerror or error}") from error


def check_output(path: Path) -> None:
    """Raise ConfigError where the file cannot be created."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"--output {path}: its suffix is not a known format", hint=f"end it in {' or '.join(SUFFIXES)}"
        )
    if path.exists() or path.is_symlink():
        raise _exists(str(path))


def _exists(name: str) -> ConfigError:
    return ConfigError(f"--output {name} exists already", hint="give another name, or remove it first")


def _write(file: _File, piece: memoryview) -> None:
    file.write(piece)


def _named(result: Any) -> dict[str, torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return {"output": result}
    items = dict(result) if isinstance(result, dict) else None
    if isinstance(result, (list, tuple)):
        names = getattr(result, "_fields", [str(number) for number in range(len(result))])
        items = dict(zip(names, result, strict=True))
    if items and all(isinstance(item, torch.Tensor) for item in items.values()):
        return {str(name): item for name, item in items.items()}
    raise ConfigError(
        f"the model returns a {type(result).__name__}: neither a tensor nor tensors by name",
        hint="--output with .jsonl",
    )


def _plain(value: Any, count: int) -> Any:
    """Turn tensors into nested lists of `count` rows, checked."""
    if isinstance(value, torch.Tensor):
        if not value.shape or len(value) != count:
            raise _no_rows(tuple(value.shape), count)
        return _Rows(value.float().tolist() if value.is_floating_point() else value.tolist())
    if isinstance(value, dict):
        return {str(name): _plain(item, count) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, count) for item in value]
    return value


class _Rows(list[Any]):
    """A tensor's rows, as opposed to a list that the model has returned."""


def _row(value: Any, row: int) -> Any:
    if isinstance(value, _Rows):
        return _json(value[row])
    if isinstance(value, dict):
        return {name: _row(item, row) for name, item in value.items()}
    if isinstance(value, list):
        return [_row(item, row) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _json(value: Any) -> Any:
    if isinstance(value, list):
        return [_json(item) for item in value]
    # JSON cannot hold these.
    return str(value) if isinstance(value, complex) or not math.isfinite(value) else value


def _numbers(targets: Any, count: int) -> list[Any] | None:
    if not isinstance(targets, torch.Tensor) or targets.shape != (count,):
        return None
    return [_json(item) for item in targets.tolist()]


def _joined(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    shapes = {tuple(part.shape[1:]) for part in parts}
    if len(shapes) > 1:
        raise ConfigError(
            f"'{name}' has rows of {len(shapes)} shapes: {sorted(shapes)[:3]}", hint="--output with .jsonl"
        )
    return torch.cat(parts)


def _no_rows(shape: tuple[int, ...], count: int) -> ConfigError:
    return ConfigError(
        f"the model returned shape {shape} for {count} samples",
        cause="the first axis of what it returns must be the samples",
    )


def _joined_names(names: Any) -> str:
    return ", ".join(map(str, names))
