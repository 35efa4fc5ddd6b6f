"""reference/configuration.md: every key of a config, from the schema and from the options of each adapter."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dist_train import registry
from dist_train.config.schema import RunConfig
from dist_train.config.shortcuts import SHORTCUTS
from reference_pages.markdown import code, escaped, table

HEAD = """\
# Configuration

Every key that a config may hold. The model file is `examples/digits.yaml`; `dist-train config show
CONFIG.yaml` prints each value and where it came from, `dist-train config check` looks for mistakes without
starting anything, and `dist-train config schema` prints this as JSON Schema, for an editor.

Flags of the command line win over `key=value` words, those over the file, the file over the defaults. An
unknown key is an error that names the nearest one. Times are quoted (`"4:00:00"`): YAML reads them as a
number otherwise.

A *component* is `{target: package.module:Name, args: {…}}`, or a bare string where there are no arguments.
The folder of the config can be imported from.
"""
# Kind of adapter, how its options are headed, and what it is called.
ADAPTERS = (
    ("launchers", "launch.", "launcher"),
    ("strategies", "strategy: ", "strategy"),
    ("sinks", "logging.sinks: ", "sink"),
)


def page() -> str:
    """The whole page."""
    sections = [_section(title, model) for title, model in _models(RunConfig)]
    adapters = [
        _section(f"{prefix}{name}", options, f"Options of the {what} `{name}`.")
        for kind, prefix, what in ADAPTERS
        for name in registry.names(kind)
        if (options := getattr(registry.load(kind, name), "Options", None)) and options.model_fields
    ]
    return "\n".join([HEAD, *sections, *adapters, _short_names()])


def _short_names() -> str:
    names = {key: ", ".join(map(code, targets)) for key, targets in SHORTCUTS.items() if targets}
    if "callbacks" in registry.KINDS:
        names["trainer.callbacks"] = ", ".join(map(code, registry.names("callbacks")))
    return f"## Short names\n\nOf components, by key.\n\n{table(('key', 'names'), names.items())}"


def _models(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """(dotted path, model) of the root and of each section within it; components are values."""
    yield path or "Top level", model
    for name, field in model.model_fields.items():
        for inner in _classes(field.annotation):
            if issubclass(inner, BaseModel) and not _is_value(inner):
                yield from _models(inner, f"{path}.{name}".lstrip("."))


def _is_value(model: type[BaseModel]) -> bool:
    """Component and strategy: described once, in the head of the page."""
    return {"target", "args"} <= set(model.model_fields) or {"name", "options"} <= set(model.model_fields)


def _classes(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        yield annotation
    for inner in get_args(annotation):
        if get_origin(annotation) is not Literal:
            yield from _classes(inner)


def _section(title: str, model: type[BaseModel], text: str | None = None) -> str:
    described = text or escaped((model.__doc__ or "").strip())
    rows = [_row(name, field) for name, field in model.model_fields.items()]
    return f"## {title}\n\n{described}\n\n{table(('key', 'type', 'default', 'meaning'), rows)}"


def _row(name: str, field: FieldInfo) -> tuple[str, str, str, str]:
    bounds = [text for each in field.metadata if (text := _bound(each))]
    kind = ", ".join([_type(field.annotation), *bounds])
    meaning, _, default = (field.description or "").partition("  [default: ")
    return code(name), kind, escaped(default.rstrip("]")) or _default(field), escaped(meaning)


def _type(annotation: Any) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(code(value) for value in inner)
    if origin in (Union, types.UnionType):
        named = [_type(each) for each in inner if each is not type(None)]
        return " or ".join([*named, *(["null"] if type(None) in inner else [])])
    if origin in (list, tuple):
        return f"list of {_type(inner[0])}"
    if origin is dict or annotation is dict:
        return "mapping"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section" if not _is_value(annotation) else annotation.__name__.removesuffix("Config").lower()
    names = {str: "text", int: "integer", float: "number", bool: "true, false", Any: "anything"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _bound(metadata: Any) -> str:
    words = {"ge": "at least", "gt": "more than", "lt": "less than", "le": "at most"}
    return "; ".join(
        f"{text} {_number(value)}"
        for key, text in words.items()
        if (value := getattr(metadata, key, None)) is not None
    )


def _number(value: float) -> str:
    return "2^63" if value == 2**63 else str(value)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return code(value.name) if hasattr(value, "options") else ""
    return (
        ""
        if value in ([], {}, ())
        else "null"
        if value is None
        else code(str(value).lower() if isinstance(value, bool) else value)
    )
