"""Encode an optimizer's state by parameter name, never by index; load it with every bit and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from dist_train.checkpoint.format.checkpoint_errors import with_nearest
from dist_train.checkpoint.state.encoding import decode, encode
from dist_train.checkpoint.state.sharded_tensors import as_spread
from dist_train.checkpoint.store.reader import LoadedTensors
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue

Names = Mapping[int, str]


def encode_optimizer(
    optimizer: Optimizer, names: Names, prefix: str, tensors: dict[str, torch.Tensor]
) -> dict[str, JsonValue]:
    """Return JSON for an optimizer; its tensors go into `tensors` as `<prefix>/<parameter>/<state>`.

    Args:
        optimizer: its parameters must all be in `names`.
        names: id(parameter) -> name.
        prefix: first part of the tensors' keys.
        tensors: receives the tensors.
    """
    packed = optimizer.state_dict()
    order = [name for group in group_names(optimizer, names, prefix) for name in group]
    state = {order[key] if isinstance(key, int) else key: value for key, value in packed["state"].items()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.is_meta:  # of another rank: an optimizer may make some for it, and never step it
                state.pop(names[id(parameter)], None)
    groups: list[JsonValue] = []
    for index, (group, params) in enumerate(
        zip(packed["param_groups"], group_names(optimizer, names, prefix), strict=True)
    ):
        options = {key: value for key, value in group.items() if key != "params"}
        names_json: list[JsonValue] = [*params]
        where = f"{prefix}/param_groups/{index}"
        groups.append({"params": names_json, "options": encode(options, where, tensors)})
    rest = {key: value for key, value in packed.items() if key not in ("state", "param_groups")}
    return {
        "class": type(optimizer).__qualname__,
        "param_groups": groups,
        "state": {name: encode(value, f"{prefix}/{name}", tensors) for name, value in state.items()},
        "rest": encode(rest, f"{prefix}/rest", tensors),
    }


def group_names(optimizer: Optimizer, names: Names, label: str) -> list[list[str]]:
    """Return the parameters' names, group by group.

    Raises:
        CheckpointError: a parameter belongs to no module of the state.
    """
    groups = []
    for index, group in enumerate(optimizer.param_groups):
        found = []
        for position, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise CheckpointError(
                    f"'{label}': parameter {position} of group {index}, shape {tuple(parameter.shape)}, "
                    "belongs to no module of the state",
                    cause="optimizer state is stored under the parameters' names",
                    hint='put the module beside it: state = {"model": model, "optimizer": optimizer}',
                )
            found.append(names[id(parameter)])
        groups.append(found)
    return groups


def fit_optimizer(optimizer: Optimizer, entry: Mapping[str, Any], names: Names, label: str) -> None:
    """Check that the stored state is for this class and these parameter groups.

    Raises:
        CheckpointError: naming what differs.
    """
    here, there = type(optimizer).__qualname__, entry["class"]
    if here != there:
        raise CheckpointError(
            f"'{label}' was written by {there}; this optimizer is {here}",
            hint=f"use {there}, or start afresh from the weights alone with load_model",
        )
    current, stored = (
        group_names(optimizer, names, label),
        [group["params"] for group in entry["param_groups"]],
    )
    if len(current) != len(stored):
        raise CheckpointError(
            f"'{label}' has {len(current)} parameter groups; the checkpoint has {len(stored)}"
        )
    for index, (mine, theirs) in enumerate(zip(current, stored, strict=True)):
        missing, unexpected = set(mine) - set(theirs), set(theirs) - set(mine)
        if missing or unexpected:
            parts = [f"missing {with_nearest(missing, theirs)}"] if missing else []
            parts += [f"unexpected {with_nearest(unexpected, mine)}"] if unexpected else []
            raise CheckpointError(f"'{label}', parameter group {index}: {'; '.join(parts)}")


def load_optimizer(
    optimizer: Optimizer,
    entry: Mapping[str, Any],
    names: Names,
    stored: LoadedTensors,
    to_keep: Mapping[str, torch.Tensor],
    *,
    keeps_stored: bool = False,
) -> None:
    """Load what `fit_optimizer` has accepted; works on an optimizer that has made no step yet.

    Args:
        optimizer: changed.
        entry: its content in state.json.
        names: id(parameter) -> its name.
        stored: the checkpoint's tensors; sharded ones are read for this rank alone.
        to_keep: the same, for what the optimizer keeps as it is.
        keeps_stored: whether the optimizer may keep the tensors of `stored` themselves: each has memory of
            its own, and nobody else uses it.
    """
    order = group_names(optimizer, names, "optimizer")
    index = {name: number for number, name in enumerate(name for group in order for name in group)}
    parameters = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    state = {
        name: _decode_state(value, stored, to_keep, parameters.get(name))
        for name, value in entry["state"].items()
        if name not in parameters or not parameters[name].is_meta  # of another rank's there is no state here
    }
    groups = []
    for group, mine in zip(entry["param_groups"], order, strict=True):
        groups.append({**decode(group["options"], to_keep), "params": [index[name] for name in mine]})
    packed = {index.get(name, name): value for name, value in state.items()}
    optimizer.load_state_dict({**decode(entry["rest"], to_keep), "state": packed, "param_groups": groups})
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            _undo_casts(optimizer, parameter, state.get(names[id(parameter)]), keeps_stored)


def _decode_state(
    value: JsonValue,
    stored: LoadedTensors,
    to_keep: Mapping[str, torch.Tensor],
    parameter: torch.Tensor | None,
) -> Any:
    # _undo_casts copies a parameter's own tensors, one by one; what lies deeper is kept.
    if not isinstance(value, dict) or any(key.startswith("$") for key in value):
        return decode(value, to_keep)
    return {key: _decode_one(item, stored, to_keep, parameter) for key, item in value.items()}


def _decode_one(
    item: JsonValue,
    stored: LoadedTensors,
    to_keep: Mapping[str, torch.Tensor],
    parameter: torch.Tensor | None,
) -> Any:
    key = item.get("$tensor") if isinstance(item, dict) else None
    if not isinstance(key, str):
        return decode(item, to_keep)
    if key in stored and parameter is not None and stored.stored(key).shape == parameter.shape:
        # A moment is spread as its parameter is.
        return as_spread(stored.stored(key), parameter)
    return decode(item, stored)


@torch.no_grad()
def _undo_casts(optimizer: Optimizer, parameter: torch.Tensor, saved: object, keeps_saved: bool) -> None:
    # torch casts state to the parameter's dtype on loading (float32 moments of a bfloat16 parameter would
    # lose bits), and keeps the tensors that it is given: here each gets its own dtype and memory back.
    loaded = optimizer.state.get(parameter)
    if not isinstance(saved, dict) or not isinstance(loaded, dict):
        return
    for key, value in saved.items():
        if _is_plain(value):
            # torch makes the text "<generator object …>" of a text, and drops a deque's maxlen.
            loaded[key] = value
        if not isinstance(value, torch.Tensor) or not isinstance(loaded.get(key), torch.Tensor):
            continue
        if keeps_saved and parameter.is_contiguous() and value.device == loaded[key].device:
            loaded[key] = value
            continue
        layout = parameter if value.shape == parameter.shape else value
        fresh = torch.empty_like(layout, dtype=value.dtype, device=loaded[key].device)
        loaded[key] = fresh.copy_(value)


def _is_plain(value: object) -> bool:
    """Whether it has no tensor in it: nothing that torch casts."""
    return not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))
