"""Where a bare string stands for a mapping: `loss: mse` is `loss: {target: mse}`, `strategy: ddp` its name.

Plain data only, so that overrides, origins and the dump all speak of the same, expanded paths.
"""

from __future__ import annotations

from typing import Any

from dist_train.config.problems import Path

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
STRATEGY: Path = ("strategy",)


def is_component(path: Path) -> bool:
    """True where the config holds a component."""
    return path in _COMPONENTS or (len(path) == 2 and path[0] == "metrics")


def bare_key(path: Path) -> str | None:
    """The key that a bare string at `path` stands for; None where a string is just a string."""
    if is_component(path):
        return "target"
    return "name" if path == STRATEGY else None


def full_path(path: Path) -> Path:
    """`strategy.static_graph` is written so and means `strategy.options.static_graph`."""
    if len(path) >= 2 and path[:1] == STRATEGY and path[1] not in ("name", "options"):
        return ("strategy", "options", *path[1:])
    return path


def collapse(value: Any, path: Path = ()) -> Any:
    """The short form of a config's plain data, as people write it: the inverse of the expansion."""
    if isinstance(value, list):
        return [collapse(item, (*path, index)) for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if is_component(path):
        # What lies inside `args` is the component's own and is left as it is.
        return dict(value) if value["args"] else value["target"]
    if path == STRATEGY:
        return {"name": value["name"], **value["options"]} if value["options"] else value["name"]
    return {key: collapse(item, (*path, key)) for key, item in value.items()}
