"""Cut a model's layers into stages: at named ones, or so that the largest stage is as small as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from dist_train.errors import ConfigError
from dist_train.near_names import nearest
from dist_train.strategies.stages.model_layers import Layer, layers_of


@dataclass(frozen=True)
class StageCut:
    """The layers of each stage, and which stages use each tensor.

    Args:
        layers: of each stage.
        stages_of: name of each parameter and buffer (tied ones under each name) -> its stages, ascending.
    """

    layers: tuple[tuple[Layer, ...], ...]
    stages_of: dict[str, tuple[int, ...]]

    def describe(self) -> str:
        """`embedding .. blocks.1 | blocks.2 .. norm`."""
        ends = [(stage[0].name, stage[-1].name) for stage in self.layers]
        return " | ".join(first if first == last else f"{first} .. {last}" for first, last in ends)


def cut_into_stages(model: nn.Module, stages: int, split: Sequence[str] | None) -> StageCut:
    """Choose the layers of each stage.

    Args:
        model: plain, on any device.
        stages: how many.
        split: names of the layers at which the second and each further stage begins; None: stages of about
            as many bytes of parameters.

    Raises:
        ConfigError: fewer layers than stages, or names that do not fit.
    """
    layers = layers_of(model)
    if len(layers) < stages:
        raise ConfigError(
            f"strategy pipeline: {stages} stages, and {type(model).__name__} has {len(layers)} layers",
            cause="each stage has one layer or more",
            hint=f"at most {len(layers)} stages, or more layers in `pipeline_layers()`",
        )
    starts = _balanced(model, layers, stages) if split is None else _named(layers, stages, split)
    ends = [*starts[1:], len(layers)]
    cut = tuple(tuple(layers[begin:end]) for begin, end in zip(starts, ends, strict=True))
    return StageCut(cut, _stages_of(model, cut))


def _named(layers: Sequence[Layer], stages: int, split: Sequence[str]) -> list[int]:
    if len(split) != stages - 1:
        raise ConfigError(
            f"strategy pipeline: split={list(split)} makes {len(split) + 1} stages, and there are {stages}",
            hint="name the first layer of each stage but the first one",
        )
    starts = [0]
    for name in split:
        place = next((i for i, layer in enumerate(layers) if name in layer.names), None)
        if place is None:
            known = [name for layer in layers for name in layer.names]
            near = nearest(name, known)
            raise ConfigError(
                f"strategy pipeline: split: no layer is called {name!r}",
                cause=f"there is {', '.join(layer.name for layer in layers[:24])}",
                hint=f"did you mean {near!r}?" if near else None,
            )
        if place <= starts[-1]:
            raise ConfigError(
                f"strategy pipeline: split: {name!r} does not come after the stage before it has begun",
                hint="name layers in their order, none twice, and not the first one",
            )
        starts.append(place)
    return starts


def _balanced(model: nn.Module, layers: Sequence[Layer], stages: int) -> list[int]:
    """Where stages begin, so that the largest one has the fewest bytes; the last stages get less."""
    sizes = [_bytes(model, layer) for layer in layers]
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        if len(_filled(sizes, middle)) <= stages:
            high = middle
        else:
            low = middle + 1
    starts = _filled(sizes, low)
    while len(starts) < stages:  # halve the stage with the most layers: none grows
        ends = [*starts[1:], len(sizes)]
        count, begin = max((end - begin, -begin) for begin, end in zip(starts, ends, strict=True))
        starts = sorted([*starts, -begin + count // 2])
    return starts


def _filled(sizes: Sequence[int], limit: int) -> list[int]:
    starts, used = [0], 0
    for place, size in enumerate(sizes):
        if used and used + size > limit:
            starts.append(place)
            used = 0
        used += size
    return starts


def _bytes(model: nn.Module, layer: Layer) -> int:
    own = {id(p): p for name, p in model.named_parameters(remove_duplicate=False) if layer.uses(name)}
    return sum(p.numel() * p.element_size() for p in own.values())


def _stages_of(model: nn.Module, cut: Sequence[Sequence[Layer]]) -> dict[str, tuple[int, ...]]:
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    of_tensor: dict[int, set[int]] = {}
    for name, tensor in named:
        users = {number for number, stage in enumerate(cut) if any(layer.uses(name) for layer in stage)}
        of_tensor.setdefault(id(tensor), set()).update(users)
    return {name: tuple(sorted(of_tensor[id(tensor)])) for name, tensor in named}
