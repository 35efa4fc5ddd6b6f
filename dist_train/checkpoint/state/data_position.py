"""The position in the data at a save: given by the caller, or taken from the loader in the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.checkpoint.format.manifest import DATA_KEYS


@dataclass(frozen=True)
class DataPosition:
    """The manifest's record of the data and the position in it.

    Args:
        data: the identity of the data and its order, keys of DATA_KEYS.
        epoch: whole epochs done.
        samples_in_epoch: samples of this epoch whose optimizer step is done.
        samples_total: samples since the start.
    """

    data: dict[str, Any]
    epoch: int = 0
    samples_in_epoch: int = 0
    samples_total: int = 0


def position_from(entries: Mapping[str, Any]) -> DataPosition:
    """Take the position from the one loader among the entries; empty where there is none or several.

    Args:
        entries: state key -> {kind, content}, as in state.json.
    """
    found = [entry["content"] for entry in entries.values() if _is_loader(entry)]
    if len(found) != 1:
        return DataPosition({})
    loader = found[0]
    return DataPosition(
        identity(loader), loader["epoch"], loader["samples_in_epoch"], loader.get("samples_total", 0)
    )


def identity(loader: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a loader's state_dict has of the manifest's data keys."""
    return {key: loader[key] for key in DATA_KEYS if key in loader}


def _is_loader(entry: Mapping[str, Any]) -> bool:
    content = entry["content"]
    needed = {*DATA_KEYS, "epoch", "samples_in_epoch"}
    return entry["kind"] == "object" and isinstance(content, dict) and needed <= set(content)
