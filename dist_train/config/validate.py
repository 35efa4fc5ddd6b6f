"""Apply the schema, and turn its errors into problems with path, value, hint and line."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from dist_train.config.component import Component
from dist_train.config.layers import Layers
from dist_train.config.problems import KeyPath, Problem, did_you_mean, dotted, shown
from dist_train.config.schema import RunConfig
from dist_train.near_names import nearest

# The schema accepts these values, which are not implemented yet; a setting must never be ignored.
_NOT_IMPLEMENTED: dict[KeyPath, dict[Any, str]] = {
    ("deterministic",): {"world_size_invariant": "deterministic: same_world_size is built"},
}


def validate(layers: Layers) -> tuple[RunConfig | None, list[Problem]]:
    """The typed config, or None, and every problem."""
    try:
        config = RunConfig.model_validate(layers.data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        return None, [*_not_implemented(layers), *(_problem(one, layers) for one in details)]
    return config, _not_implemented(layers)


def _not_implemented(layers: Layers) -> list[Problem]:
    problems = []
    for path, values in _NOT_IMPLEMENTED.items():
        value = layers.data.get(str(path[0]))
        if isinstance(value, str) and value in values:
            where = layers.find(path)
            text = f"`{dotted(path)}: {value}` is not built yet"
            problems.append(Problem(text, where.detail if where else "", values[value], path))
    return problems


def _problem(detail: ErrorDetails, layers: Layers) -> Problem:
    path: KeyPath = tuple(detail["loc"])
    found = layers.find(path)
    where = found.detail if found else ""
    kind, value = detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return Problem(f"unknown key `{dotted(path)}`", where, _other_key(path), path)
    if kind == "missing":
        return Problem(f"`{dotted(path)}` is missing", where, _describe(path), path)
    if kind == "value_error":
        message = str(detail["ctx"]["error"])
        shown_value = "" if value is None or isinstance(value, dict | list) else f" (got {shown(value)})"
        return Problem(f"`{dotted(path)}`: {message}{shown_value}", where, None, path)
    text = f"`{dotted(path)}`: expected {_expected(detail, path)}, got {shown(value)}"
    return Problem(text, where, _type_hint(kind, value, detail), path)


_EXPECTED: dict[str, Callable[[dict[str, Any]], str]] = {
    "int_type": lambda _: "a whole number",
    "int_from_float": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "string_type": lambda _: "text",
    "string_too_short": lambda _: "text that is not empty",
    "bool_type": lambda _: "true or false",
    "dict_type": lambda _: "a mapping",
    "list_type": lambda _: "a list",
    "literal_error": lambda ctx: f"one of {ctx['expected']}",
    "greater_than_equal": lambda ctx: f"at least {ctx['ge']}",
    "greater_than": lambda ctx: f"more than {ctx['gt']}",
    "less_than": lambda ctx: f"less than {ctx['lt']}",
}


def _expected(detail: ErrorDetails, path: KeyPath) -> str:
    kind = detail["type"]
    if kind.startswith("model_"):
        model = model_at(path)
        if model is Component:
            return '"package.module:Name" or a mapping of target and args'
        keys = ", ".join(model.model_fields) if model else "its keys"
        return f"a mapping of {keys}"
    if kind in _EXPECTED:
        return _EXPECTED[kind](dict(detail.get("ctx", {})))
    return f"something else ({detail['msg']})"


def _type_hint(kind: str, value: Any, detail: ErrorDetails) -> str | None:
    if kind == "string_type" and isinstance(value, bool | int | float):
        return "quote it"
    if kind in ("int_type", "int_from_float") and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if kind in ("int_type", "float_type") and isinstance(value, str) and _is_number(value):
        return "drop the quotes"
    if kind == "literal_error" and isinstance(value, str):
        choices = [
            word.strip("'") for word in str(detail["ctx"]["expected"]).replace(" or ", ", ").split(", ")
        ]
        close = nearest(value, choices)
        return f"did you mean `{close}`?" if close else None
    if value is None and kind.startswith("model_"):
        return "fill the section, or remove its key"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _describe(path: KeyPath) -> str | None:
    model = model_at(path[:-1])
    found = model.model_fields.get(str(path[-1])) if model else None
    return found.description if found else None


def _other_key(path: KeyPath) -> str:
    model = model_at(path[:-1])
    word, inside = str(path[-1]), path[:-1]
    siblings = list(model.model_fields) if model else []
    close = nearest(word, siblings)
    if close:
        return f"did you mean `{dotted((*inside, close))}`?"
    if model is Component:
        return f"arguments of the component stand below `args`: `{dotted((*inside, 'args', word))}`"
    elsewhere = [known for known in _all_paths() if known[-1] == word]
    if elsewhere:
        return f"did you mean `{dotted(elsewhere[0])}`?"
    return did_you_mean(word, siblings)


def model_at(path: KeyPath) -> type[BaseModel] | None:
    """The model at a path of the config; None if it is free-form or no section."""
    model: type[BaseModel] | None = RunConfig
    for part in path:
        if isinstance(part, int):
            continue  # an item of a list of models
        found = model.model_fields.get(part) if model else None
        model = _model_of(found.annotation) if found else None
    return model


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) in (list, typing.Union):
        for inner in typing.get_args(annotation):
            if (model := _model_of(inner)) is not None:
                return model
    return None


def _all_paths(model: type[BaseModel] = RunConfig, path: KeyPath = ()) -> list[KeyPath]:
    paths: list[KeyPath] = []
    for name, found in model.model_fields.items():
        paths.append((*path, name))
        inner = _model_of(found.annotation)
        # Items of a list are reached by an index, and a stray key does not belong into a component.
        if inner is not None and inner is not Component:
            paths.extend(_all_paths(inner, (*path, name)))
    return paths
