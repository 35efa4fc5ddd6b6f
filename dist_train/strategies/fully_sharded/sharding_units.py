"""Choose the units of a sharded model: the modules whose parameters are gathered and freed together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from dist_train.errors import ConfigError
from dist_train.near_names import nearest

# They only hold modules: their forward is never called, so that nothing would gather their parameters.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


@dataclass(frozen=True)
class Unit:
    """One module that is sharded by itself, inside of the whole model."""

    name: str
    module: nn.Module


def choose_units(
    model: nn.Module, wanted: Sequence[str] | None, min_parameters: int | None = None
) -> list[Unit]:
    """Return the units inside of a model, the innermost first; the rest of the model is one more.

    Args:
        model: the plain model.
        wanted: names of classes, or patterns of module names (`blocks.*`); None: each member of a ModuleList.
        min_parameters: in place of `wanted`: modules with at least so many parameters that no unit inside
            of them has.

    Raises:
        ConfigError: a name that fits no module or a container of modules, parameters that are shared
            between units, or trained ones of unlike dtypes in one unit.
    """
    if min_parameters is not None:
        units = list(_by_size(model, min_parameters))
    else:
        units = fitting_modules(model, wanted, "units")
    units.sort(key=lambda unit: -unit.name.count("."))
    _refuse_shared(model, units)
    _refuse_unlike_dtypes(model, units)
    return units


def fitting_modules(model: nn.Module, wanted: Sequence[str] | None, option: str) -> list[Unit]:
    """Return the modules with parameters that these names fit, in the order of the names.

    Args:
        wanted: names of classes, or patterns of module names; None: each member of a ModuleList.
        option: what they are chosen for; errors name it.

    Raises:
        ConfigError: a name that fits no module or a container of modules.
    """
    return list(_members_of_lists(model) if wanted is None else _named(model, wanted, option))


def describe_units(units: Collection[Unit]) -> str:
    """Say what they are: `4 x TransformerBlock and the rest`."""
    kinds = Counter(type(unit.module).__name__ for unit in units)
    listed = [f"{count} x {kind}" for kind, count in sorted(kinds.items())]
    return " and ".join([", ".join(listed), "the rest"]) if listed else "the whole model as one"


def _candidates(model: nn.Module) -> Iterator[Unit]:
    for name, module in model.named_modules():
        if name and next(module.parameters(), None) is not None:
            yield Unit(name, module)


def _members_of_lists(model: nn.Module) -> Iterator[Unit]:
    lists = {name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for unit in _candidates(model):
        if unit.name.rpartition(".")[0] in lists and not isinstance(unit.module, _CONTAINERS):
            yield unit


def _named(model: nn.Module, wanted: Sequence[str], option: str) -> Iterator[Unit]:
    found: dict[str, Unit] = {}
    for word in wanted:
        fitting = [
            unit
            for unit in _candidates(model)
            if type(unit.module).__name__ == word or fnmatchcase(unit.name, word)
        ]
        if not fitting:
            raise _no_module(model, word, option)
        for unit in fitting:
            if isinstance(unit.module, _CONTAINERS):
                raise ConfigError(
                    f"{option}: '{word}' names '{unit.name}', a {type(unit.module).__name__}",
                    cause="it only holds modules: its forward is never called",
                    hint=f"name its members: '{unit.name}.*'",
                )
        found |= {unit.name: unit for unit in fitting}
    yield from found.values()


def _no_module(model: nn.Module, word: str, option: str) -> ConfigError:
    classes = sorted({type(unit.module).__name__ for unit in _candidates(model)})
    near = nearest(word, [*classes, *(unit.name for unit in _candidates(model))])
    return ConfigError(
        f"{option}: '{word}' is neither a class nor the name of a module in {type(model).__name__}",
        cause=f"its modules with parameters are of the classes {', '.join(classes) or 'none'}",
        hint=f"did you mean '{near}'?" if near else None,
    )


def _by_size(model: nn.Module, min_parameters: int) -> Iterator[Unit]:
    taken: set[int] = set()

    def visit(name: str, module: nn.Module) -> Iterator[Unit]:
        for child, inner in module.named_children():
            yield from visit(f"{name}.{child}" if name else child, inner)
        left = {id(p): p.numel() for p in module.parameters() if id(p) not in taken}
        if name and not isinstance(module, _CONTAINERS) and sum(left.values()) >= min_parameters:
            taken.update(left)
            yield Unit(name, module)

    yield from visit("", model)


def _refuse_shared(model: nn.Module, units: Sequence[Unit]) -> None:
    """torch finds a parameter of two units at the first forward only, and says it in its own words."""
    unit_of = {id(module): unit.name for unit in reversed(units) for module in unit.module.modules()}
    places: dict[int, dict[str, str]] = defaultdict(dict)
    for name, module in model.named_modules():
        for parameter_name, parameter in module._parameters.items():
            if parameter is not None:
                full = f"{name}.{parameter_name}" if name else parameter_name
                places[id(parameter)][full] = unit_of.get(id(module), "")
    for names in places.values():
        if len(set(names.values())) > 1:
            listed = ", ".join(f"'{name}' in {_place(unit)}" for name, unit in names.items())
            raise ConfigError(
                f"units: one parameter is shared between units: {listed}",
                cause="a unit's parameters are freed when its forward ends, while the other still needs them",
                hint="leave the modules that share it out of `units`: they are then in the rest of the model",
            )


def _refuse_unlike_dtypes(model: nn.Module, units: Sequence[Unit]) -> None:
    """torch gathers and reduces a unit's parameters together, and raises in its own words."""
    unit_of = {id(module): unit.name for unit in reversed(units) for module in unit.module.modules()}
    first: dict[str, tuple[str, nn.Parameter]] = {}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is None or not parameter.requires_grad:
                continue
            full, unit = f"{name}.{key}" if name else key, unit_of.get(id(module), "")
            other, there = first.setdefault(unit, (full, parameter))
            if there.dtype != parameter.dtype:
                raise ConfigError(
                    f"units: '{full}' is {parameter.dtype} and '{other}' {there.dtype}, "
                    f"both in {_place(unit)}",
                    cause="the trained parameters of a unit are gathered together, in one dtype",
                    hint="give them one dtype, or name modules of one dtype in `units`",
                )


def _place(unit: str) -> str:
    return f"unit '{unit}'" if unit else "the rest"
