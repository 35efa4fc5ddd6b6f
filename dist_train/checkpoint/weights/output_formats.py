"""What weights are written as: one safetensors file, several with an index, or a file of torch.save."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from dist_train.checkpoint.format.hashing import Digested
from dist_train.checkpoint.format.tensor_bytes import check_storable
from dist_train.checkpoint.weights.byte_pieces import digests_by_name
from dist_train.checkpoint.weights.import_weights import Weights
from dist_train.checkpoint.weights.output_file import write_file
from dist_train.checkpoint.weights.sharded_output import save_sharded
from dist_train.checkpoint.weights.weight_tensors import WeightTensors
from dist_train.errors import CheckpointError

SAFETENSORS = ".safetensors"
# Write a new file or directory; return the digests of all that was read for it, by name.
Save = Callable[[Path], dict[str, Digested]]


def check_storable_as(
    weights: Weights, source: Path | str, target: Path, max_shard_bytes: int | None = None
) -> None:
    """Refuse what the target's format cannot hold.

    Raises:
        CheckpointError: naming it.
    """
    for name, tensor in weights.tensors.stored.items():
        if isinstance(tensor, torch.Tensor):
            check_storable(name, tensor)
    if weights.extra and _is_safetensors(target, max_shard_bytes):
        raise CheckpointError(
            f"'{min(weights.extra)}' in {source} is no tensor, and a safetensors file holds nothing else",
            hint="give --out a name that ends in .pt, or load_model(path, model) as it is",
        )


def save_as(weights: Weights, target: Path, max_shard_bytes: int | None = None) -> Save:
    """Return what writes the weights in the format that the target's name says."""
    if max_shard_bytes is not None:
        return lambda path: save_sharded(weights.tensors, path, max_shard_bytes)
    if target.suffix == SAFETENSORS:
        return lambda path: _save_safetensors(weights.tensors, path)
    return lambda path: _save_torch_file(weights, path)


def _is_safetensors(target: Path, max_shard_bytes: int | None) -> bool:
    return max_shard_bytes is not None or target.suffix == SAFETENSORS


def _save_safetensors(tensors: WeightTensors, path: Path) -> dict[str, Digested]:
    aliases = tensors.aliases()
    stored = {name: one for name, one in tensors.stored.items() if name not in aliases}
    digests = write_file(path, stored, {**aliases, "format": "pt"})
    return digests | {second: digests[first] for second, first in aliases.items()}


def _save_torch_file(weights: Weights, path: Path) -> dict[str, Digested]:
    tensors = weights.tensors.in_memory()
    with open(path, "xb") as file:
        try:
            torch.save({**tensors, **weights.extra}, file)
        except RuntimeError as error:
            # torch's own report of a full disk hides the system's.
            raise _system_error(error) from error
        file.flush()
        os.fsync(file.fileno())
    return digests_by_name(WeightTensors(tensors))


def _system_error(error: BaseException) -> BaseException:
    """Return the OSError that caused an error; the error itself where there is none."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return cause or error
