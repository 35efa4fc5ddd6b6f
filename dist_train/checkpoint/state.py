"""The state mapping of save() and load(): what kind each value is, and its tensors' keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from dist_train.checkpoint.encoding import encode
from dist_train.checkpoint.memory import check_storable
from dist_train.checkpoint.modules import module_state, parameter_names
from dist_train.checkpoint.optimizers import encode_optimizer
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from dist_train.distributed.control import JsonValue

MAIN = "model"
PREFIXES = {"optimizer": "optim"}
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_RESERVED = re.compile(r"rank\d+|ranks|state|manifest|reserved")


@dataclass
class Collected:
    """One rank's state, not yet copied anywhere.

    Args:
        entries: state key -> what state.json says of it.
        owned: state key -> tensors by manifest key, each stored once.
        aliases: manifest key of a tied tensor -> manifest key of the stored one.
        buffers: manifest key of a module's buffer -> its name under `rank<r>/buffer/`.
        local_buffers: buffers outside any state_dict, by their name under `rank<r>/buffer/`.
        weights: the names of weights_hash -> manifest key of the stored tensor.
    """

    entries: dict[str, JsonValue] = field(default_factory=dict)
    owned: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    buffers: dict[str, str] = field(default_factory=dict)
    local_buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    weights: dict[str, str] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Every replicated tensor by manifest key."""
        return {key: tensor for part in self.owned.values() for key, tensor in part.items()}


def prefix_of(key: str) -> str:
    """First part of the manifest keys of a state key: `optimizer` -> `optim`."""
    return PREFIXES.get(key, key)


def kind_of(value: object) -> str:
    """How a value of the mapping is stored and restored."""
    if isinstance(value, nn.Module):
        return "module"
    if isinstance(value, Optimizer):
        return "optimizer"
    if isinstance(value, torch.Tensor):
        return "tensor"
    if callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None)):
        return "object"
    return "value"


def names_for(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[int, str]:
    """id(parameter) -> name, from the modules of the mapping.

    Where an optimizer holds parameters of several modules, each name begins with its module's key.
    """
    modules = {key: parameter_names(value) for key, value in state.items() if isinstance(value, nn.Module)}
    wanted = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for names in modules.values():
        if wanted <= set(names):
            return names
    return {place: f"{key}/{name}" for key, names in modules.items() for place, name in names.items()}


def buffer_name(key: str, name: str) -> str:
    """The part of a per-rank key after `rank<r>/buffer/`."""
    return name if key == MAIN else f"{prefix_of(key)}/{name}"


def collect(state: Mapping[str, Any]) -> Collected:
    """Read the whole mapping; tensors are views of live memory.

    Raises:
        CheckpointError: a key or a value that cannot be stored.
    """
    _check_keys(state)
    out = Collected()
    for key, value in state.items():
        kind = kind_of(value)
        prefix, tensors = prefix_of(key), out.owned.setdefault(key, {})
        content: JsonValue
        if kind == "module":
            content = _collect_module(key, value, out)
        elif kind == "optimizer":
            content = encode_optimizer(value, names_for(value, state), prefix, tensors)
        elif kind == "tensor":
            check_storable(key, value)
            tensors[f"{prefix}/value"], content = value.detach(), None
        else:
            content = encode(value.state_dict() if kind == "object" else value, prefix, tensors)
        out.entries[key] = {"kind": kind, "content": content}
    return out


def _collect_module(key: str, module: nn.Module, out: Collected) -> JsonValue:
    found, prefix = module_state(module), prefix_of(key)
    for name, tensor in found.tensors.items():
        if name not in found.aliases:
            out.owned[key][f"{prefix}/{name}"] = tensor
    out.aliases |= {f"{prefix}/{second}": f"{prefix}/{first}" for second, first in found.aliases.items()}
    for name in found.buffers - set(found.aliases):
        out.buffers[f"{prefix}/{name}"] = buffer_name(key, name)
    for name, tensor in found.local_buffers.items():
        out.local_buffers[buffer_name(key, name)] = tensor
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
                "rank<number>, ranks, state, manifest and reserved are taken",
            )
        other = prefixes.setdefault(prefix_of(key), key)
        if other != key:
            raise CheckpointError(
                f"the state keys '{other}' and '{key}' would share the name '{prefix_of(key)}'"
            )
