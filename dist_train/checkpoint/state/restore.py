"""Restore a loaded checkpoint into the state mapping: everything is checked, then everything is copied."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch

from dist_train.checkpoint.format.checkpoint_errors import with_nearest
from dist_train.checkpoint.state.collect import MAIN, is_optional, kind_of, names_for, prefix_of
from dist_train.checkpoint.state.encoding import decode, encode
from dist_train.checkpoint.state.module_state import fit_module, load_buffers, load_module
from dist_train.checkpoint.state.optimizers import fit_optimizer, load_optimizer
from dist_train.checkpoint.state.own_copies import own_copies
from dist_train.checkpoint.state.sharded_tensors import as_spread
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.distributed.parameter_shards import is_sharded
from dist_train.errors import CheckpointError

EXTRA = "extra state/"
# The order in which they are restored: an optimizer may look at its parameters, a schedule at its optimizer.
_ORDER = ("module", "optimizer", "tensor", "object", "per_rank", "value")

logger = logging.getLogger(__name__)


def check_fits(state: Mapping[str, Any], loaded: LoadedCheckpoint) -> None:
    """Check that every entry has its counterpart and fits it; change nothing.

    Raises:
        CheckpointError: naming what is missing, unexpected or different.
    """
    label = loaded.name
    missing = {key for key in set(state) - set(loaded.entries) if not is_optional(state[key])}
    unexpected = {key for key in set(loaded.entries) - set(state) if not loaded.entries[key].get("optional")}
    if missing:
        near = with_nearest(missing, sorted(unexpected) or sorted(loaded.entries))
        raise CheckpointError(f"{label} has no entry {near}; it has {', '.join(sorted(loaded.entries))}")
    if unexpected:
        raise CheckpointError(
            f"{label} also holds {with_nearest(unexpected, sorted(state))}, which `state` does not name",
            cause="a run that goes on without them would not be the same run",
            hint="add them to `state`; for the weights alone use load_model(path, model)",
        )
    for key, value in present(state, loaded).items():
        here, there = kind_of(value), loaded.entries[key]["kind"]
        if here != there:
            raise CheckpointError(f"'{key}' was saved as {there}; `state` has a {type(value).__name__} there")
        _check_one(key, value, state, loaded)


def _check_one(key: str, value: Any, state: Mapping[str, Any], loaded: LoadedCheckpoint) -> None:
    kind, label = kind_of(value), f"{loaded.name}, '{key}'"
    if kind == "module":
        fit_module(value, module_tensors(key, loaded), label)
    elif kind == "optimizer":
        fit_optimizer(value, loaded.entries[key]["content"], names_for(value, state), key)
    elif kind == "tensor":
        saved = loaded.tensors.stored(f"{prefix_of(key)}/value")
        if (saved.shape, saved.dtype) != (value.shape, value.dtype):
            raise CheckpointError(
                f"{label} is {saved.dtype} {tuple(saved.shape)}; "
                f"`state` has {value.dtype} {tuple(value.shape)}"
            )
    elif kind == "value" and not isinstance(state, MutableMapping):
        raise CheckpointError(f"'{key}' cannot be restored: `state` is a {type(state).__name__}, not a dict")


def present(state: Mapping[str, Any], loaded: LoadedCheckpoint) -> dict[str, Any]:
    """The part of `state` that the checkpoint holds: all but optional entries that it lacks."""
    return {key: value for key, value in state.items() if key in loaded.entries}


def module_tensors(key: str, loaded: LoadedCheckpoint) -> dict[str, torch.Tensor | StoredTensor]:
    """Return a module's tensors by plain name, tied ones under both names; sharded ones are not read."""
    return {n: t for n, t in loaded.stored_below(prefix_of(key)).items() if not n.startswith(EXTRA)}


def apply(state: Mapping[str, Any], loaded: LoadedCheckpoint) -> None:
    """Copy everything that `check_fits` has accepted, modules first."""
    found, own = present(state, loaded), own_copies(loaded)
    for key, value in sorted(found.items(), key=lambda item: _ORDER.index(kind_of(item[1]))):
        kind, content = kind_of(value), loaded.entries[key]["content"]
        if kind == "module":
            complete = fit_module(value, module_tensors(key, loaded), key)
            load_module(value, complete, decode(content["extra"], own))
        elif kind == "optimizer":
            names, own_memory = names_for(value, state), not loaded.is_shared
            load_optimizer(value, content, names, loaded.tensors, own, keeps_stored=own_memory)
            if loaded.manifest.step > 0:
                _let_schedules_step_first()
        elif kind == "tensor":
            with torch.no_grad():
                value.copy_(as_spread(loaded.tensors.stored(f"{prefix_of(key)}/value"), value))
        elif kind == "object":
            value.load_state_dict(decode(content, _as_they_are(key, value.state_dict(), loaded)))
        elif kind == "value" and isinstance(state, MutableMapping):
            state[key] = decode(content, _as_they_are(key, value, loaded) if _has_sharded(value) else own)


def _let_schedules_step_first() -> None:
    """A schedule steps first after an epoch's end; torch saw no optimizer step yet, and would warn."""
    warnings.filterwarnings("ignore", r"Detected call of `lr_scheduler\.step\(\)` before", UserWarning)


def _as_they_are(key: str, value: Any, loaded: LoadedCheckpoint) -> Mapping[str, torch.Tensor]:
    """Copy the stored tensors, each to the device where its counterpart is now, and sharded as that is."""
    current: dict[str, torch.Tensor] = {}
    encode(value, prefix_of(key), current)
    return own_copies(loaded, current)


def _has_sharded(value: Any) -> bool:
    return isinstance(value, dict) and any(is_sharded(item) for item in value.values())


def apply_buffers(state: Mapping[str, Any], loaded: LoadedCheckpoint, rank: int, same_mesh: bool) -> None:
    """Restore the buffers that are each rank's own; on another mesh all ranks get rank 0's."""
    buffers = loaded.below("rank0/buffer")
    if same_mesh:
        buffers |= loaded.below(f"rank{rank}/buffer")
    for key, value in state.items():
        if kind_of(value) == "module":
            start = "" if key == MAIN else f"{prefix_of(key)}/"
            mine = {name[len(start) :]: t for name, t in buffers.items() if name.startswith(start)}
            load_buffers(value, mine)


def log_other_entries(state: Mapping[str, Any], loaded: LoadedCheckpoint) -> None:
    """Log the optional entries that only the run or only the checkpoint has."""
    for key in sorted(set(state) - set(loaded.entries)):
        logger.warning("%s holds no state of '%s': it begins without", loaded.name, key)
    for key in sorted(set(loaded.entries) - set(state)):
        logger.warning("%s holds state of '%s', which this run does not use", loaded.name, key)
