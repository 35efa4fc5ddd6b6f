"""The short form of a section: `loss: mse` is `loss: {target: mse}`, `strategy: ddp` its name.

Plain data only, so that overrides, origins and the dump all use the same, expanded paths.
"""

from __future__ import annotations

from typing import Any

from dist_train.config.problems import KeyPath

_COMPONENTS = frozenset(
    [
        ("model",),
        ("task",),
        ("data", "train"),
        ("data", "evaluation"),
        ("loss",),
        ("optimizer",),
        ("schedule",),
    ]
)
# Lists of components, and of adapters with options.
_COMPONENT_LISTS = (("metrics",), ("trainer", "callbacks"))
_STRATEGY: KeyPath = ("strategy",)
_SINKS: KeyPath = ("logging", "sinks")


def is_component(path: KeyPath) -> bool:
    """True where the config holds a component."""
    return path in _COMPONENTS or path[:-1] in _COMPONENT_LISTS


def is_adapter(path: KeyPath) -> bool:
    """True where the config holds a name and, beside it, the options of what is called so."""
    return path == _STRATEGY or path[:-1] == _SINKS


def bare_key(path: KeyPath) -> str | None:
    """The key to which a bare string at `path` expands; None if a string there is just a string."""
    if is_component(path):
        return "target"
    return "name" if is_adapter(path) else None


def full_path(path: KeyPath) -> KeyPath:
    """`strategy.static_graph` is written so and means `strategy.options.static_graph`."""
    for length in (len(_STRATEGY), len(_SINKS) + 1):
        inside = path[length : length + 1]
        if is_adapter(path[:length]) and inside and inside[0] not in ("name", "options"):
            return (*path[:length], "options", *path[length:])
    return path


def collapse(value: Any, path: KeyPath = ()) -> Any:
    """The short form of a config's plain data: the inverse of the expansion."""
    if isinstance(value, list):
        return [collapse(item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if is_component(path):
        # The content of `args` belongs to the component and stays as it is.
        return dict(value) if value["args"] else value["target"]
    if is_adapter(path):
        return {"name": value["name"], **value["options"]} if value["options"] else value["name"]
    return {key: collapse(item, (*path, key)) for key, item in value.items()}
