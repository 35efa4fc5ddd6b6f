"""Refuse a model that its owner has spread over several devices: one card would have to hold all of it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from dist_train.errors import ConfigError


def refuse_split_model(model: nn.Module, device: torch.device) -> None:
    """Raise ConfigError for a model that lies on several GPUs, or has parts without memory (meta).

    A model in CPU memory with some of it on one GPU is moved, as is any other.

    Args:
        device: where it would be moved.
    """
    noted = set(_device_map(model))
    placed = sorted(noted or {str(device) for device in _devices(model)})
    name = type(model).__name__
    if "meta" in placed:
        raise ConfigError(
            f"{name} has parameters on the device meta: they have no values",
            hint="model.to_empty(device=run.device), then load or initialize its weights",
        )
    if len([place for place in placed if place != "cpu"]) > 1:
        raise ConfigError(
            f"{name} is spread over {', '.join(placed)}",
            cause=f"each rank trains the whole model on one device: all of it would be moved to {device}",
            hint="if it fits there: "
            + ("load it without device_map=" if noted else f"model.to({str(device)!r}) before dt.prepare"),
        )


def _devices(model: nn.Module) -> Iterable[torch.device]:
    for tensor in (*model.parameters(), *model.buffers()):
        yield tensor.device


def _device_map(model: nn.Module) -> Iterable[str]:
    """The places that transformers and accelerate have noted; a bare number is a GPU's."""
    for module in model.modules():
        noted = getattr(module, "hf_device_map", None)
        for place in noted.values() if isinstance(noted, dict) else ():
            yield f"cuda:{place}" if isinstance(place, int) else str(place)
