"""Where in the data a checkpoint stands, taken from a loader in the state when nobody says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.checkpoint.manifest import DATA_KEYS


@dataclass(frozen=True)
class DataPosition:
    """What the manifest says of the data.

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
    """The position of the one entry that describes data; an empty one where there is none or several.

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
    """The manifest's part of a loader's state_dict."""
    return {key: loader[key] for key in DATA_KEYS if key in loader}


def _is_loader(entry: Mapping[str, Any]) -> bool:
    content = entry["content"]
    needed = {*DATA_KEYS, "epoch", "samples_in_epoch"}
    return entry["kind"] == "object" and isinstance(content, dict) and needed <= set(content)
