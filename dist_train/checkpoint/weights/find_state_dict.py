"""Find the state dict in what torch.save was given: the whole of it, or a part of a larger record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.errors import CheckpointError

# What training scripts call the part that holds the weights.
KNOWN = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights")
_STEP = "/"
_EXTRA = "_extra_state"


@dataclass(frozen=True)
class FoundStateDict:
    """A state dict, and where it was found.

    Args:
        state: name -> tensor or what reads it, or what a module's get_extra_state gave.
        entry: its keys (`model/state_dict`); "" for the whole file.
        unused: the keys beside it.
    """

    state: dict[str, Any]
    entry: str
    unused: tuple[str, ...]


def find_state_dict(record: object, label: str, entry: str | None = None) -> FoundStateDict:
    """Find the weights.

    Args:
        record: what torch.load gave, or a record of what reads each tensor.
        label: the file, for errors.
        entry: the key of the part to take (`a/b` for one in another); None looks for a known one.

    Raises:
        CheckpointError: there are none, or several and `entry` is not given.
    """
    if not isinstance(record, Mapping):
        raise CheckpointError(
            f"{label} holds a {type(record).__name__}, not weights by name",
            hint="save model.state_dict()",
        )
    if entry is not None:
        return _named(record, label, entry)
    key = _choose(record, label)
    if key is None:
        return FoundStateDict(dict(record), "", ())
    if is_state_dict(record[key]):
        return FoundStateDict(dict(record[key]), key, _others(record, key))
    inner = find_state_dict(record[key], label)
    return FoundStateDict(inner.state, f"{key}{_STEP}{inner.entry}", (*inner.unused, *_others(record, key)))


def is_state_dict(value: object) -> bool:
    """Whether this is a state dict: text keys, at least one tensor, no further records inside."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    # What a module's get_extra_state gave may be a record; its key is one of torch's own.
    inside = [item for key, item in value.items() if not key.endswith(_EXTRA)]
    records = (item for item in inside if isinstance(item, Mapping) and item)
    return any(isinstance(item, torch.Tensor | StoredTensor) for item in inside) and not any(records)


def _choose(record: Mapping[str, Any], label: str) -> str | None:
    """Return the key of the weights; None where the record itself is a state dict."""
    holding = [str(key) for key, value in record.items() if _holds(value)]
    known = [key for key in KNOWN if key in holding]
    if len(known) == 1:
        return known[0]
    if not holding and is_state_dict(record):
        return None
    if len(holding) == 1:
        return holding[0]
    if not holding:
        raise CheckpointError(
            f"{label} holds no weights by name", cause=f"it holds {_shown(list(record)) or 'nothing'}"
        )
    choices = known or holding
    raise CheckpointError(
        f"{label} holds weights under several names: {_shown(choices)}",
        hint=f'say which one: entry="{choices[0]}" (on the command line: --entry {choices[0]})',
    )


def _holds(value: object) -> bool:
    if is_state_dict(value):
        return True
    return isinstance(value, Mapping) and any(key in KNOWN and _holds(value[key]) for key in value)


def _named(record: Mapping[str, Any], label: str, entry: str) -> FoundStateDict:
    value: Any = record
    for part in [entry] if entry in record else entry.split(_STEP):
        if not isinstance(value, Mapping) or part not in value:
            there = list(value) if isinstance(value, Mapping) else []
            raise CheckpointError(
                f"{label} has no entry '{entry}'", cause=f"it has {_shown(there) or 'nothing of that kind'}"
            )
        value = value[part]
    if not is_state_dict(value):
        raise CheckpointError(f"entry '{entry}' of {label} is no weights by name: a {type(value).__name__}")
    return FoundStateDict(dict(value), entry, _others(record, entry.split(_STEP)[0]))


def _others(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(other) for other in record if other != key)


def _shown(names: list[Any], limit: int = 8) -> str:
    text = ", ".join(repr(name) for name in names[:limit])
    return text + (f" and {len(names) - limit} more" if len(names) > limit else "")
