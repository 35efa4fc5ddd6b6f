"""Read the inputs in order, batch by batch: a data set of the config, or arrays from files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dist_train.checkpoint.weights.safetensors_file import read_safetensors
from dist_train.config.schema import RunConfig
from dist_train.data.reading.sample_reader import Request, SampleReader
from dist_train.errors import ConfigError, NotFoundError
from dist_train.trainer.build_components import make_collate
from dist_train.trainer.component_factory import make

SUFFIXES = (".npy", ".npz", ".safetensors")


class Inputs(ABC):
    """Samples by number; `name` is their origin, for the log."""

    name: str

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def read(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return the model's inputs for samples [start, stop), and their targets where there are any."""

    def batches(self, size: int) -> Iterator[tuple[Any, Any]]:
        """Yield all samples, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield self.read(start, min(start + size, len(self)))


class ConfigInputs(Inputs):
    """The config's own data set, in its order. A sample of two parts is (input, target)."""

    def __init__(self, config: RunConfig, split: str) -> None:
        part = config.data.train if split == "train" else config.data.evaluation
        if part is None:
            raise ConfigError(
                "--input evaluation: the config has no data.evaluation",
                hint="--input train, or --input FILE (.npy, .npz, .safetensors; ./evaluation for a path)",
            )
        self.name = f"data.{split} ({part.target})"
        self._dataset = make(part, "data")
        dataset_id = str(getattr(self._dataset, "dataset_id", ""))
        self._reader = SampleReader(self._dataset, make_collate(config), config.seed, dataset_id)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, start: int, stop: int) -> tuple[Any, Any]:
        """Read them as training does: collated alike, randomness keyed by the seed."""
        batch = self._reader.__getitems__(Request(0, list(range(start, stop))))
        if isinstance(batch, (list, tuple)) and len(batch) == 2:
            return batch[0], batch[1]
        return batch, None


class FileInputs(Inputs):
    """One or more arrays of shape [samples, …], one after another."""

    def __init__(self, name: str, arrays: list[tuple[str, Any]]) -> None:
        self.name = name
        self._arrays = [array for _, array in arrays]
        self.dtype = _as_tensor(self._arrays[0][:0]).dtype
        self._ends = np.cumsum([len(array) for array in self._arrays]).tolist()
        first_name, first = arrays[0]
        for other_name, other in arrays[1:]:
            if _kind(other) != _kind(first):
                raise ConfigError(
                    f"{other_name} holds {_kind(other)} and {first_name} {_kind(first)}",
                    hint="one folder holds samples of one kind",
                )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> tuple[Any, Any]:
        """Return a tensor [stop - start, …]."""
        parts, begin = [], 0
        for array, end in zip(self._arrays, self._ends, strict=True):
            low, high = max(start, begin), min(stop, end)
            if low < high:
                parts.append(_as_tensor(array[low - begin : high - begin]))
            begin = end
        return torch.cat(parts) if len(parts) > 1 else parts[0], None


def open_inputs(word: str, config: RunConfig) -> Inputs:
    """Open `evaluation`, `train`, a file, or a folder of files; `./train` is always a path.

    Raises:
        NotFoundError: no such file; ConfigError: it holds no samples.
    """
    path = Path(word)
    if word in ("evaluation", "train"):
        inputs: Inputs = ConfigInputs(config, word)
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise NotFoundError(f"no {', '.join(SUFFIXES)} in {path}")
        inputs = FileInputs(
            f"{path} ({len(files)} files)", [(str(file), _array(file, None)) for file in files]
        )
    else:
        file, key = _file_and_key(word)
        inputs = FileInputs(word, [(word, _array(file, key))])
    if not len(inputs):
        raise ConfigError(f"{inputs.name} holds no samples")
    return inputs


def _file_and_key(word: str) -> tuple[Path, str | None]:
    """`FILE` or `FILE:KEY`."""
    if Path(word).exists():
        return Path(word), None
    name, colon, key = word.rpartition(":")
    if colon and Path(name).is_file():
        return Path(name), key
    raise NotFoundError(
        f"--input {word}: no such file or folder",
        cause=f"it is evaluation, train, or a path to {', '.join(SUFFIXES)}",
    )


def _array(path: Path, key: str | None) -> Any:
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} is none of {', '.join(SUFFIXES)}", hint="np.save('inputs.npy', array)")
    if path.suffix == ".npy":
        array = _numpy(path)
        if key is not None:
            raise ConfigError(f"{path} is one array: it has no {key!r}")
    else:
        found = read_safetensors(path)[1] if path.suffix == ".safetensors" else _numpy(path)
        array = _one_of(found, path, key)
    if not array.shape:
        raise ConfigError(f"{path} holds a single number, not samples along a first axis")
    try:
        _as_tensor(array[:0])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path} holds {array.dtype}, which is no element type of torch", hint="array.astype(np.float32)"
        ) from error
    return array


def _numpy(path: Path) -> Any:
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return dict(archive)
        # Memory-mapped; never unpickled.
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # zipfile, zlib and numpy have one each for a file that makes no sense
        raise ConfigError(f"{path} cannot be read: {error}") from error


def _as_tensor(part: Any) -> torch.Tensor:
    # A copy: a memory-mapped file is read-only.
    return part if isinstance(part, torch.Tensor) else torch.from_numpy(np.array(part))


def _one_of(found: dict[str, Any], path: Path, key: str | None) -> Any:
    if key is None and len(found) == 1:
        return next(iter(found.values()))
    if key in found:
        return found[key]
    names = ", ".join(sorted(found)) or "nothing"
    raise ConfigError(
        f"{path} holds {names}" + ("" if key is None else f", not {key!r}"),
        hint=f"say which one: --input {path}:{min(found)}" if found else None,
    )


def _kind(array: Any) -> str:
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape[1:])}"
