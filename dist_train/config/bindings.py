"""Find the names that a module binds at its top level, by its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

# Calls that may bind any name at run time.
_DYNAMIC = frozenset({"globals", "locals", "vars", "exec", "setattr"})


@dataclass
class Bindings:
    """Top-level names of a module.

    Args:
        names: name -> the statements that bind it, in order.
        is_open: other names may be bound too (`import *`, a module's `__getattr__`, `globals()`).
    """

    names: dict[str, list[ast.stmt]] = field(default_factory=dict)
    is_open: bool = False


def top_level(tree: ast.Module) -> Bindings:
    """Collect the names that the module binds, also inside if, try, with and loops."""
    found = Bindings()
    for statement in _statements(tree.body):
        for name in _bound_by(statement):
            found.names.setdefault(name, []).append(statement)
    found.is_open = bool({"*", "__getattr__"} & set(found.names)) or any(
        _binds_any(node) for node in ast.walk(tree)
    )
    found.names.pop("*", None)
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for block in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, block, []))
        for part in [*getattr(statement, "handlers", []), *getattr(statement, "cases", [])]:
            yield from _statements(part.body)


def _bound_by(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
        case ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name for alias in aliases)
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name
        case ast.Assign(targets=targets):
            yield from (name for target in targets for name in _stored(target))
        case ast.For(target=target):
            yield from _stored(target)
        case ast.With(items=items):
            yield from (name for item in items if item.optional_vars for name in _stored(item.optional_vars))
        case _ if type(statement).__name__ == "TypeAlias":  # Python 3.12's `type X = ...`
            yield statement.name.id  # type: ignore[attr-defined]
        case _:
            return


def _stored(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _binds_any(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name in _DYNAMIC
        case ast.Global() | ast.NamedExpr():
            return True
        case ast.Attribute(value=ast.Name(id="sys"), attr="modules"):
            return True
        case _:
            return False
