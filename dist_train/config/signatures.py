"""Read from its source which keyword arguments a function or class takes; None if that is not certain."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_train.config.bindings import top_level
from dist_train.config.find_source import Module, find_module, parse
from dist_train.errors import ConfigError

# A name may be re-exported through several packages; beyond this many it is left undecided.
_MAX_HOPS = 5


@dataclass(frozen=True)
class Arguments:
    """Names of the keyword arguments that are taken, and of those among them without a default."""

    known: frozenset[str]
    required: frozenset[str]


def known_arguments(
    module: Module, attribute: str, folders: Sequence[Path | str] = (), hops: int = _MAX_HOPS
) -> Arguments | None:
    """Keyword arguments of `attribute` of `module`; None: any, or not decidable.

    Decorators, several definitions, `**kwargs`, metaclasses and inherited constructors are not decidable.
    """
    tree = parse(module)
    if tree is None or "." in attribute:
        return None
    statements = top_level(tree).names.get(attribute, [])
    if len(statements) != 1:
        return None
    match statements[0]:
        case ast.FunctionDef() as function:
            return _of_function(function, is_method=False)
        case ast.ClassDef() as definition:
            return _of_class(definition)
        case ast.Assign(value=ast.Name(id=other)) if hops:
            return known_arguments(module, other, folders, hops - 1)
        case ast.ImportFrom() as source if hops:
            return _of_import(module, source, attribute, folders, hops)
        case _:
            return None


def _of_function(function: ast.FunctionDef, is_method: bool) -> Arguments | None:
    if function.decorator_list or function.args.kwarg is not None:
        return None
    first_named = max(len(function.args.posonlyargs), 1 if is_method else 0)
    positional = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    named, only = positional[first_named:], [one.arg for one in function.args.kwonlyargs]
    required = named[: max(0, len(named) - len(function.args.defaults))]
    required += [
        name for name, default in zip(only, function.args.kw_defaults, strict=True) if default is None
    ]
    return Arguments(frozenset(named + only), frozenset(required))


def _of_class(definition: ast.ClassDef) -> Arguments | None:
    if definition.decorator_list or definition.keywords:
        return None
    own = [node for node in definition.body if isinstance(node, ast.FunctionDef)]
    makers = [node for node in own if node.name in ("__init__", "__new__")]
    if len(makers) != 1 or makers[0].name != "__init__":
        return None
    return _of_function(makers[0], is_method=True)


def _of_import(
    module: Module, source: ast.ImportFrom, attribute: str, folders: Sequence[Path | str], hops: int
) -> Arguments | None:
    """Follow `from x import Name` to where Name is defined."""
    package = module.name.split(".")
    if source.level:
        package = package[: len(package) - source.level + (1 if module.is_package else 0)]
    else:
        package = []
    name = ".".join([*package, *([source.module] if source.module else [])])
    original = next(alias.name for alias in source.names if (alias.asname or alias.name) == attribute)
    try:
        return known_arguments(find_module(name, folders), original, folders, hops - 1)
    except ConfigError:
        # That module is not part of the config; if its import fails, the rank reports it.
        return None
