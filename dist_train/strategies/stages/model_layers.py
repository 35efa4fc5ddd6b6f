"""The layers of a model, in the order in which its forward calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from dist_train.errors import ConfigError

_HINT = (
    "nn.Sequential has layers as it is; give another model a method `pipeline_layers()` that returns a list, "
    "in the order of forward: modules, or pairs (function, names of the modules and parameters it uses). "
    "forward(x) must be what they give one after the other"
)


@dataclass(frozen=True)
class Layer:
    """One step of a model's forward.

    Args:
        call: takes what the layer before it returned; the first one the model's arguments.
        names: of the modules and parameters that it uses, as in `named_modules` and `named_parameters`.
    """

    call: Callable[..., Any]
    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    def uses(self, tensor: str) -> bool:
        """Whether a parameter or buffer of this name is one of its own."""
        return any(tensor == name or tensor.startswith(f"{name}.") for name in self.names)


def layers_of(model: nn.Module) -> list[Layer]:
    """Return a model's layers.

    Raises:
        ConfigError: it does not say them, or names what it does not have, or a parameter is in none.
    """
    listed = getattr(model, "pipeline_layers", None)
    if callable(listed):
        layers = [_as_layer(model, place, each) for place, each in enumerate(listed())]
    elif isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        layers = [Layer(module, (name,)) for name, module in model.named_children()]
    else:
        raise ConfigError(
            f"{type(model).__name__} does not say its layers, so that it cannot be cut into stages",
            hint=_HINT,
        )
    if not layers:
        raise ConfigError(f"{type(model).__name__} has no layers", hint=_HINT)
    _refuse_left_out(model, layers)
    return layers


def _as_layer(model: nn.Module, place: int, given: object) -> Layer:
    kind = type(model).__name__
    if isinstance(given, nn.Module):
        names = [name for name, module in model.named_modules() if module is given]
        if not names:
            raise ConfigError(
                f"pipeline_layers of {kind}: layer {place} ({type(given).__name__}) is no module of it",
                hint=_HINT,
            )
        return Layer(given, (names[0],))
    if not (isinstance(given, Sequence) and len(given) == 2 and callable(given[0])):
        raise ConfigError(f"pipeline_layers of {kind}: layer {place} is {given!r}", hint=_HINT)
    call, names = given[0], [given[1]] if isinstance(given[1], str) else list(given[1])
    known = {name for name, _ in model.named_modules()}
    known |= {name for name, _ in model.named_parameters(remove_duplicate=False)}
    known |= {name for name, _ in model.named_buffers(remove_duplicate=False)}
    for name in names:
        if not isinstance(name, str) or not name or name not in known:
            raise ConfigError(
                f"pipeline_layers of {kind}: layer {place} uses {name!r}, which the model does not have",
                hint=_HINT,
            )
    if not names:
        raise ConfigError(f"pipeline_layers of {kind}: layer {place} has no name", hint=_HINT)
    return Layer(call, tuple(names))


def _refuse_left_out(model: nn.Module, layers: Sequence[Layer]) -> None:
    groups: dict[int, list[str]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        groups.setdefault(id(tensor), []).append(name)
    for names in groups.values():
        if not any(layer.uses(name) for layer in layers for name in names):
            raise ConfigError(
                f"'{names[0]}' of {type(model).__name__} is in none of its layers",
                cause="no stage would hold it",
                hint="name it, or its module, beside the layer of `pipeline_layers()` that uses it",
            )
