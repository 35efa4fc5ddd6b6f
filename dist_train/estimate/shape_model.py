"""A config's model without values: built on the device meta, or for real where it cannot be."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
import torch
from torch import nn

from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError, DistTrainError
from dist_train.strategies.lazy_parameters import refuse_lazy_parameters
from dist_train.trainer.build_components import make_model, recompute_activations
from dist_train.trainer.rng_isolation import seed_for_model

# What a model that cannot be built without values may take of this machine's free memory.
_PART_OF_FREE_MEMORY = 0.25
_MOST_BYTES = 8 * 2**30


@dataclass(frozen=True)
class ShapeModel:
    """A model on the device meta.

    Args:
        built_for_real: why it had to be built with values first; None: it was not.
    """

    model: nn.Module
    built_for_real: str | None = None


def make_shape_model(config: RunConfig) -> ShapeModel:
    """Build the model without values.

    Raises:
        ConfigError: it can be built in neither way.
    """
    try:
        with torch.device("meta"):
            model = _seeded(config)
    except DistTrainError:
        raise
    except Exception as error:  # the user's code may do anything that needs values
        why = f"{type(error).__name__}: {_first_line(error)}"
        model = _built_for_real(config, why)
        return ShapeModel(_without_values(model), why)
    refuse_lazy_parameters(model)
    return ShapeModel(_without_values(model))


def _seeded(config: RunConfig) -> nn.Module:
    seed_for_model(config.seed)
    model = make_model(config)
    recompute_activations(model, config)
    return model


def _built_for_real(config: RunConfig, why: str) -> nn.Module:
    allowed = memory_for_values()
    try:
        with memory_limit(allowed):
            model = _seeded(config)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise ConfigError(
            f"the model {config.model.target} cannot be built without values, and for real it needs more "
            f"than {allowed / 2**30:.1f} GiB",
            cause=why,
            hint="let it build under `torch.device('meta')`: no .item(), no numpy, no file while it is made",
        ) from None
    refuse_lazy_parameters(model)
    return model


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def memory_for_values() -> int:
    """Bytes that tensors with values may take on this machine."""
    return min(_MOST_BYTES, int(psutil.virtual_memory().available * _PART_OF_FREE_MEMORY))


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Let allocations fail that go beyond so many bytes more than this process has now (Linux)."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = int(getattr(psutil.Process().memory_info(), "data", 0)) + more
    limit = wanted if before[1] == resource.RLIM_INFINITY else min(wanted, before[1])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _without_values(model: nn.Module) -> nn.Module:
    """The same module with every parameter and buffer on meta; tied ones stay tied."""
    found: dict[int, torch.Tensor] = {}
    for owner in model.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                owner._parameters[name] = _moved(parameter, found)  # type: ignore[assignment]
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = _moved(buffer, found)
    return model


def _moved(tensor: torch.Tensor, found: dict[int, torch.Tensor]) -> torch.Tensor:
    if tensor.device.type == "meta":
        return tensor
    if id(tensor) not in found:
        moved = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            moved = nn.Parameter(moved, requires_grad=tensor.requires_grad)
        found[id(tensor)] = moved
    return found[id(tensor)]


@contextmanager
def other_parameters(model: nn.Module, others: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Put other parameters in the place of the model's own, tied ones too, and put its own back.

    Args:
        others: by the names of `named_parameters`, which has tied ones once.
    """
    replaced = {id(own): others[name] for name, own in model.named_parameters()}
    slots = [
        (owner, name, parameter)
        for owner in model.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None
    ]
    for owner, name, parameter in slots:
        owner._parameters[name] = replaced[id(parameter)]
    try:
        yield
    finally:
        for owner, name, parameter in slots:
            owner._parameters[name] = parameter
