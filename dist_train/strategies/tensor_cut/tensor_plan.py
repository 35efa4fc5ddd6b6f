"""The layers that a plan names, and how each parameter is cut; refuses a plan that cannot work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import TypeAdapter, ValidationError
from torch import nn

from dist_train.errors import ConfigError
from dist_train.near_names import nearest
from dist_train.strategies.rank_memory import NotForThisModel
from dist_train.strategies.tensor_cut.parameter_cuts import ParameterCut
from dist_train.strategies.tensor_cut.tensor_styles import LayerStyle, Plan, WrittenStyle

_ROWS, _COLUMNS = 0, 1
_HINT_PLAN = (
    "strategy.options.plan={'blocks.*.up': colwise, 'blocks.*.down': rowwise}, or a method "
    "tensor_parallel_plan() of the model that returns such a dict"
)


@dataclass(frozen=True)
class CutLayer:
    """One layer that the ranks of a group compute together."""

    name: str
    module: nn.Module
    style: LayerStyle


@dataclass(frozen=True)
class CutPlan:
    """What a plan makes of one model.

    Args:
        size: ranks of a tensor group.
        layers: in the order of the model's modules.
        cuts: id of a parameter -> how it is cut; the others are whole on every rank.
    """

    size: int
    layers: tuple[CutLayer, ...]
    cuts: Mapping[int, ParameterCut]


def compiled_is_refused(strategy: str) -> ConfigError:
    """Make the error for a model that torch.compile compiles as a whole."""
    return ConfigError(
        f"trainer.compile does not work with strategy {strategy}",
        cause="exchanges within layers are hooks, at each of which the compiler would stop and start again",
        hint="leave trainer.compile out",
    )


def plan_cuts(model: nn.Module, given: Plan | None, size: int) -> CutPlan:
    """Find the layers of a plan, and check that each can be cut.

    Args:
        model: plain, on any device (meta will do).
        given: patterns of module names (`blocks.*.up`) -> style; None: the model's own plan.
        size: ranks of a tensor group.

    Raises:
        ConfigError: there is no plan, a pattern fits no layer, or a layer cannot be cut so.
    """
    plan = given if given is not None else _plan_of(model)
    layers = tuple(_layers(model, plan))
    cuts: dict[int, ParameterCut] = {}
    for layer in layers:
        for name, cut in _cuts_of(layer.style).items():
            parameter = layer.module._parameters.get(name)
            if parameter is not None:
                _refuse_uneven(f"{layer.name}.{name}", tuple(parameter.shape), layer.style, cut, size)
                cuts.setdefault(id(parameter), cut)
    _refuse_untied(model, layers, cuts)
    return CutPlan(size, layers, cuts)


def describe_plan(plan: CutPlan) -> str:
    """Say what is cut: `2 x colwise, 2 x rowwise`."""
    kinds = Counter(layer.style.style for layer in plan.layers)
    return ", ".join(f"{count} x {kind}" for kind, count in sorted(kinds.items()))


def _plan_of(model: nn.Module) -> Plan:
    own = getattr(model, "tensor_parallel_plan", None)
    written = own() if callable(own) else getattr(model, "_tp_plan", None)
    if not isinstance(written, Mapping) or not written:
        raise NotForThisModel(
            f"{type(model).__name__} has no plan of the layers that are cut over ranks", hint=_HINT_PLAN
        )
    return check_plan(written, f"the plan of {type(model).__name__}")


def check_plan(written: Mapping[str, Any], where: str) -> Plan:
    """Check the styles of a plan that is not an option.

    Raises:
        ConfigError: naming the pattern.
    """
    found: dict[str, LayerStyle] = {}
    for pattern, style in written.items():
        try:
            found[pattern] = TypeAdapter[LayerStyle](WrittenStyle).validate_python(style)
        except ValidationError as error:
            wrong = error.errors()[0]
            raise ConfigError(f"{where}: '{pattern}': {style!r}: {wrong['msg']}") from None
    return found


def _layers(model: nn.Module, plan: Plan) -> Iterator[CutLayer]:
    chosen: dict[str, tuple[str, LayerStyle]] = {}
    modules = {name: module for name, module in model.named_modules() if name}
    for pattern, style in plan.items():
        fitting = [name for name in modules if fnmatchcase(name, pattern)]
        if not fitting:
            raise _no_layer(model, pattern)
        for name in fitting:
            _refuse_kind(pattern, name, modules[name], style)
            before, other = chosen.setdefault(name, (pattern, style))
            if other != style:
                raise ConfigError(
                    f"plan: '{before}' ({other.style}) and '{pattern}' ({style.style}) both name '{name}'"
                )
    for name, module in modules.items():
        if name in chosen:
            yield CutLayer(name, module, chosen[name][1])


def _no_layer(model: nn.Module, pattern: str) -> ConfigError:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Embedding)]
    # As a pattern: `blocks.*.up`, and not the layer of one block.
    near = nearest(pattern, [re.sub(r"\.\d+(?=\.)", ".*", name) for name in names])
    listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return ConfigError(
        f"plan: '{pattern}' names no module of {type(model).__name__}",
        cause=f"it has the layers {listed}" if names else "it has no Linear and no Embedding",
        hint=f"did you mean '{near}'?" if near else None,
    )


def _refuse_kind(pattern: str, name: str, module: nn.Module, style: LayerStyle) -> None:
    kind = nn.Embedding if style.style == "embedding" else nn.Linear
    # A class of its own may compute something else from its weight than the style knows.
    if not isinstance(module, kind) or type(module).forward is not kind.forward:
        raise ConfigError(
            f"plan: '{pattern}' names '{name}', a {type(module).__name__}",
            cause=f"{style.style} cuts an nn.{kind.__name__}",
            hint="name the layers themselves, for instance 'blocks.*.up'",
        )
    if "weight" not in module._parameters:
        raise ConfigError(f"plan: the weight of '{name}' is computed from other parameters")
    if isinstance(module, nn.Embedding):
        special = {
            "padding_idx": module.padding_idx is not None,
            "max_norm": module.max_norm is not None,
            "sparse": module.sparse,
            "scale_grad_by_freq": module.scale_grad_by_freq,
        }
        if used := [word for word, is_used in special.items() if is_used]:
            raise ConfigError(f"plan: '{name}' has {used[0]}, which does not work with a cut embedding")


def _cuts_of(style: LayerStyle) -> dict[str, ParameterCut]:
    if style.style == "rowwise":
        return {"weight": ParameterCut(_COLUMNS)}  # its bias is added once, to the sum
    if style.style == "embedding":
        return {"weight": ParameterCut(_ROWS)}
    rows = ParameterCut(_ROWS, style.parts)
    return {"weight": rows, "bias": rows}


def _refuse_uneven(
    name: str, shape: tuple[int, ...], style: LayerStyle, cut: ParameterCut, size: int
) -> None:
    length = shape[cut.dim]
    of_what = f" in {cut.parts} fused layers" if cut.parts > 1 else ""
    if length % cut.parts:
        raise ConfigError(
            f"plan: '{name}' {shape} has {length} rows, which are not {cut.parts} layers of equally many",
            hint="give the number of layers that are fused: 'fused_colwise:3' for query, key and value",
        )
    each = length // cut.parts
    if each % style.block or (each // style.block) % size:
        blocks = f", in blocks of {style.block}" if style.block > 1 else ""
        what = "rows" if cut.dim == _ROWS else "columns"
        heads = each // style.block if style.block > 1 and each % style.block == 0 else None
        raise ConfigError(
            f"plan: {style.style} cuts '{name}' {shape}: {each} {what}{of_what}{blocks}"
            f"{f' ({heads} of them)' if heads else ''} cannot be shared evenly by {size} ranks",
            hint="choose a size of the tensor group that divides them, or leave the layer out of the plan",
        )


def _refuse_untied(model: nn.Module, layers: tuple[CutLayer, ...], cuts: Mapping[int, ParameterCut]) -> None:
    """One parameter under two names must be cut alike under both, or it would become two."""
    planned = {id(layer.module): layer for layer in layers}
    seen: dict[int, tuple[str, ParameterCut | None]] = {}
    for name, module in model.named_modules():
        layer = planned.get(id(module))
        own = {} if layer is None else _cuts_of(layer.style)
        for key, parameter in module._parameters.items():
            if parameter is None:
                continue
            full, cut = f"{name}.{key}" if name else key, own.get(key)
            first, other = seen.setdefault(id(parameter), (full, cut))
            if other != cut:
                raise ConfigError(
                    f"plan: '{first}' and '{full}' are one parameter, and the plan cuts "
                    f"{_said(first, other)} and {_said(full, cut)}",
                    cause="they would become two parameters, each with half of the gradient",
                    hint="leave both out of the plan, or cut an embedding that is tied to the output layer "
                    "as 'embedding' and that layer as 'colwise_gathered'",
                )


def _said(name: str, cut: ParameterCut | None) -> str:
    if cut is None:
        return f"'{name}' not at all"
    return f"'{name}' by {'rows' if cut.dim == _ROWS else 'columns'}"
