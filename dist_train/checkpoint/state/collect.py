"""Collect the tensors and values of the state mapping that save() and load() are given."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from dist_train.checkpoint.format.tensor_bytes import check_storable, host
from dist_train.checkpoint.format.tensor_file import refuse_reserved_name
from dist_train.checkpoint.state.encoding import encode
from dist_train.checkpoint.state.module_state import module_state, parameter_names
from dist_train.checkpoint.state.optimizers import encode_optimizer
from dist_train.checkpoint.state.per_rank import PerRank, encode_per_rank
from dist_train.checkpoint.state.sharded_tensors import ShardedTensor, take_out_sharded
from dist_train.distributed.parameter_shards import first_holder, holds_one_stage
from dist_train.errors import CheckpointError
from dist_train.jobs.frozen_imports import without_collector

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue

logger = logging.getLogger(__name__)

MAIN = "model"
PREFIXES = {"optimizer": "optim"}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_RESERVED = re.compile(r"(rank|data)\d+|ranks|state|manifest|reserved")


@dataclass
class CollectedState:
    """One rank's state, not yet copied anywhere.

    Args:
        entries: state key -> its {kind, content} in state.json.
        owned: state key -> tensors by manifest key, each stored once.
        aliases: manifest key of a tied tensor -> manifest key of the stored one.
        buffers: manifest key of a module's buffer -> its name under `rank<r>/buffer/`.
        local_buffers: buffers outside any state_dict, by their name under `rank<r>/buffer/`.
        holders: of these, the rank whose value stands for that of all: in a pipeline of a stage that uses it.
        weights: the names of weights_hash -> manifest key of the stored tensor.
        per_rank: state key -> what is each rank's own; its entry has no content before it is gathered.
        sharded: state key -> tensors that are spread over ranks, by manifest key; `owned` has none of them.
        absent_parameters: state key of an optimizer -> its parameters that other stages of a pipeline hold.
    """

    entries: dict[str, JsonValue] = field(default_factory=dict)
    owned: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    local_buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)
    per_rank: dict[str, PerRank] = field(default_factory=dict)
    sharded: dict[str, dict[str, ShardedTensor]] = field(default_factory=dict)
    absent_parameters: dict[str, list[str]] = field(default_factory=dict)

    @property
    def sharded_tensors(self) -> dict[str, ShardedTensor]:
        """All sharded tensors by manifest key."""
        return {key: tensor for part in self.sharded.values() for key, tensor in part.items()}

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All replicated tensors by manifest key."""
        return {key: tensor for part in self.owned.values() for key, tensor in part.items()}


@without_collector()
def contiguous_on_host(collected: CollectedState) -> CollectedState:
    """The same with every tensor of host memory contiguous: rank 0 compares, hashes and writes one copy.

    Tensors that are so already are not copied; those on a device are compared there, and copied once.
    """

    def as_written(tensor: torch.Tensor) -> torch.Tensor:
        return host(tensor) if tensor.device.type == "cpu" else tensor

    owned = {
        key: {name: as_written(tensor) for name, tensor in part.items()}
        for key, part in collected.owned.items()
    }
    local = {name: as_written(tensor) for name, tensor in collected.local_buffers.items()}
    return replace(collected, owned=owned, local_buffers=local)


def prefix_of(key: str) -> str:
    """Return the first part of the manifest keys of a state key: `optimizer` -> `optim`."""
    return PREFIXES.get(key, key)


def kind_of(value: object) -> str:
    """Return how a value of the mapping is stored and restored."""
    if isinstance(value, PerRank):
        return "per_rank"
    if isinstance(value, nn.Module):
        return "module"
    if isinstance(value, Optimizer):
        return "optimizer"
    if isinstance(value, torch.Tensor):
        return "tensor"
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return "object"
    return "value"


def is_optional(value: object) -> bool:
    """Whether a checkpoint without this entry fits, too: a run can go on without it (callbacks)."""
    return bool(getattr(value, "optional_in_checkpoint", False))


def names_for(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[int, str]:
    """Map id(parameter) to its name, from the modules of the mapping.

    Where an optimizer holds parameters of several modules, each name begins with its module's key.
    """
    modules = {key: parameter_names(value) for key, value in state.items() if isinstance(value, nn.Module)}
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for names in modules.values():
        if wanted <= set(names):
            return names
    return {place: f"{key}/{name}" for key, names in modules.items() for place, name in names.items()}


def buffer_name(key: str, name: str) -> str:
    """Return the part of a per-rank key after `rank<r>/buffer/`."""
    return name if key == MAIN else f"{prefix_of(key)}/{name}"


@without_collector()
def collect(state: Mapping[str, Any]) -> CollectedState:
    """Read the whole mapping; tensors are views of live memory.

    Raises:
        CheckpointError: a key or a value that cannot be stored.
    """
    _check_keys(state)
    out = CollectedState()
    for key, value in state.items():
        kind = kind_of(value)
        prefix, tensors = prefix_of(key), out.owned.setdefault(key, {})
        content: JsonValue
        if kind == "module":
            content = _collect_module(key, value, out)
        elif kind == "optimizer":
            names = names_for(value, state)
            content = encode_optimizer(value, names, prefix, tensors)
            if absent := [names[id(p)] for group in value.param_groups for p in group["params"] if p.is_meta]:
                out.absent_parameters[key] = absent
        elif kind == "per_rank":
            out.per_rank[key], content = value, None
        elif kind == "tensor":
            check_storable(key, value)
            tensors[f"{prefix}/value"], content = value.detach(), None
        else:
            content = encode(value.state_dict() if kind == "object" else value, prefix, tensors)
        # Without the word where it is not needed: state.json is hashed.
        optional: dict[str, JsonValue] = {"optional": True} if is_optional(value) else {}
        out.entries[key] = {"kind": kind, "content": content, **optional}
        refuse_reserved_name(tensors, f"{prefix}/")
        if sharded := take_out_sharded(tensors):
            out.sharded[key] = sharded
    if not any(isinstance(value, nn.Module) and holds_one_stage(value) for value in state.values()):
        _refuse_without_values(out)
    return out


def _refuse_without_values(found: CollectedState) -> None:
    for name, tensor in found.tensors.items():
        if tensor.is_meta:
            raise CheckpointError(
                f"'{name}' is on the device meta: it has no values",
                hint="model.to_empty(device=run.device), then load or initialize its weights",
            )


def refuse_unstorable(state: Mapping[str, Any], rank: int) -> None:
    """Refuse before the training what its first save would refuse.

    Raises:
        CheckpointError: as `collect`.
    """
    modules = [value for value in state.values() if isinstance(value, nn.Module)]
    if any(is_lazy(parameter) for module in modules for parameter in module.parameters()):
        return  # not before their first forward
    try:
        for key, value in collect(state).per_rank.items():
            encode_per_rank(key, value, rank, {})
    except CheckpointError:
        raise
    except Exception as error:  # of a state_dict() that is not ready before the training
        logger.debug("what `state` holds is not known before the training: %s", error)


def _collect_module(key: str, module: nn.Module, out: CollectedState) -> JsonValue:
    found, prefix = module_state(module), prefix_of(key)
    for name, tensor in found.tensors.items():
        if name not in found.aliases:
            out.owned[key][f"{prefix}/{name}"] = tensor
    out.aliases |= {f"{prefix}/{second}": f"{prefix}/{first}" for second, first in found.aliases.items()}
    for name in found.buffers - set(found.aliases):
        out.buffers[f"{prefix}/{name}"] = buffer_name(key, name)
    for name, tensor in found.local_buffers.items():
        out.local_buffers[buffer_name(key, name)] = tensor
        out.holders[buffer_name(key, name)] = first_holder(module, name)
    if key == MAIN or not out.weights:
        out.weights = {name: f"{prefix}/{found.aliases.get(name, name)}" for name in found.tensors}
    return {"extra": encode(found.extra, f"{prefix}/extra state", out.owned[key])}


def _check_keys(state: Mapping[str, Any]) -> None:
    prefixes: dict[str, str] = {}
    for key in state:
        if not isinstance(key, str) or not _KEY.fullmatch(key) or _RESERVED.fullmatch(key):
            raise CheckpointError(
                f"{key!r} cannot be a key of the state",
                cause="keys name files: letters, digits, _ and -, not beginning with a digit; "
                "rank<number>, data<number>, ranks, state, manifest and reserved are taken",
            )
        other = prefixes.setdefault(prefix_of(key), key)
        if other != key:
            raise CheckpointError(
                f"the state keys '{other}' and '{key}' would share the name '{prefix_of(key)}'"
            )
