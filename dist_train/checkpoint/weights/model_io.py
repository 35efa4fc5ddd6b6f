"""Save and load weights alone: save one safetensors file that any tool opens, load most formats."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from dist_train.checkpoint.format.tensor_bytes import host
from dist_train.checkpoint.format.tensor_file import TensorFile
from dist_train.checkpoint.rank_zero_writes import by_rank_zero
from dist_train.checkpoint.run_context import current_control
from dist_train.checkpoint.state.module_state import fit_module, load_module, module_state, unwrap
from dist_train.checkpoint.weights.import_weights import Weights, open_weights
from dist_train.checkpoint.weights.precision import widen
from dist_train.checkpoint.weights.prefixes import fit_names
from dist_train.config.bucket_url import scheme_of
from dist_train.distributed.parameter_shards import is_sharded
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.rundir.durable_files import durable_file, make_directory, remove_tree, sync_directory

logger = logging.getLogger(__name__)


def save_model(model: nn.Module, path: str | Path) -> None:
    """Write the weights under the plain module's names, atomically; rank 0 writes.

    Called on every rank or under `if run.is_main:`. Not collective: rank 0 waits for nobody; any other rank
    returns when rank 0 has written, or raises its error.

    Tied tensors are stored once; the header names the other, as safetensors' own save_model does.

    Args:
        model: wrapped or not.
        path: the file, usually *.safetensors; the same on all ranks.

    Raises:
        CheckpointError: a part of the model cannot be stored; CheckpointWriteError: it could not be written.
        UsageError: another rank has called, and rank 0 has not.
    """
    by_rank_zero(current_control(), f"save_model({str(path)!r})", lambda: _write(model, Path(path)))


def _write(model: nn.Module, path: Path) -> None:
    found = module_state(model)
    spread = (name for name, tensor in found.tensors.items() if is_sharded(tensor) or tensor.is_meta)
    if sharded := next(spread, None):
        raise CheckpointError(
            f"'{sharded}' is spread over ranks, and save_model writes what rank 0 holds",
            hint="save with CheckpointManager on all ranks; dist-train checkpoint export RUN --out FILE",
        )
    if found.extra:
        raise CheckpointError(
            f"'{min(found.extra)}' is no tensor, and a safetensors file holds nothing else",
            hint="save with CheckpointManager, which keeps it in state.json",
        )
    stored = {name: host(tensor) for name, tensor in found.tensors.items() if name not in found.aliases}
    file = TensorFile(stored, {**found.aliases, "format": "pt"})
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        make_directory(path.parent)
        remove_tree(temporary)
        with durable_file(temporary) as write:
            file.write(write)
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            remove_tree(temporary)
        raise CheckpointWriteError(
            f"the model could not be written: {error.filename or path}: {error.strerror}",
            hint=f"the file needs {file.bytes:,} bytes; what was at {path} before is still there",
        ) from error


def load_model(path: str | Path, model: nn.Module, *, entry: str | None = None) -> None:
    """Load weights into a model from a checkpoint directory, a safetensors file or a torch.save file.

    A torch.save file holds a state dict, or a record with one under `state_dict`, `model`, ….

    Leading `module.`, `_orig_mod.` and `_fsdp_wrapped_module.` (of DDP, torch.compile, FSDP) are dropped
    where the names then fit. One line in the log names the file's kind and every change. Our checkpoints
    are verified first; nothing is unpickled but tensors. Numbers are widened (bfloat16 into a float32
    model: exact, and logged), never narrowed. Not collective.

    Args:
        path: the file or checkpoint directory; or the URL of a checkpoint, or of a folder of them.
        model: wrapped or not, on any device.
        entry: which part of the file holds the weights, where several could.

    Raises:
        NotFoundError: nothing is there; CheckpointError: damaged, needs pickle, or does not fit (naming
            the nearest).
    """
    source = path if isinstance(path, str) and scheme_of(path) is not None else Path(path)
    put_weights(open_weights(source, entry), source, model)


def put_weights(weights: Weights, path: Path | str, model: nn.Module) -> None:
    """`load_model` for weights that are open already; `path` is where they came from.

    Raises:
        CheckpointError: they do not fit the model.
    """
    _refuse_meta(model)
    expected = module_state(model)
    renamed = fit_names([*weights.tensors, *weights.extra], [*expected.tensors, *expected.extra])
    tensors = {renamed.names[name]: tensor for name, tensor in weights.tensors.stored.items()}
    extra = {renamed.names[name]: value for name, value in weights.extra.items()}
    _check_extra(extra, expected.extra, path)
    tensors, widened = widen(tensors, expected.tensors)
    load_module(model, fit_module(model, tensors, str(path)), extra)
    changes = (renamed.description(), widened, _unused(weights.unused))
    details = "".join(f"; {text}" for text in changes if text)
    logger.info("loaded %s tensors of %s (%s)%s", len(tensors), path, weights.origin, details)


def _unused(keys: tuple[str, ...]) -> str | None:
    return f"not used: {', '.join(keys[:8])}{' …' if len(keys) > 8 else ''}" if keys else None


def _refuse_meta(model: nn.Module) -> None:
    for name, tensor in unwrap(model).state_dict().items():
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "meta":
            raise CheckpointError(
                f"'{name}' of the model is on the meta device, which can hold no values",
                hint="call model.to_empty(device=…) first",
            )


def _check_extra(given: Mapping[str, object], expected: Mapping[str, object], path: Path | str) -> None:
    if missing := sorted(set(expected) - set(given)):
        raise CheckpointError(f"{path} cannot give '{missing[0]}', which is no tensor")
    if more := sorted(set(given) - set(expected)):
        raise CheckpointError(
            f"'{more[0]}' in {path} is a {type(given[more[0]]).__name__}, and the model has no such entry"
        )
