"""Show each value of a config with its origin, and the JSON Schema of a config file for editors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from dist_train.config.dump import dump_config
from dist_train.config.problems import KeyPath, dotted
from dist_train.config.shorthand import bare_key, full_path
from dist_train.config.yaml_reader import StrictLoader

if TYPE_CHECKING:
    from dist_train.config.load import Resolved


def show(resolved: Resolved) -> list[str]:
    """The resolved config as YAML lines, each value with its origin: `seed: 0   # run.yaml:3`."""
    text = dump_config(resolved.config)
    lines = text.splitlines()
    root = yaml.compose(text, Loader=StrictLoader)
    for path, line in _leaf_lines(root, ()):
        origin = resolved.origins.get(_origin_key(path, resolved.origins))
        if origin is not None:
            lines[line] += f"   # {origin}"
    return lines


def _origin_key(path: KeyPath, origins: dict[str, str]) -> str:
    path = full_path(path)
    name = dotted(path)
    return name if name in origins else dotted((*path, bare_key(path) or ""))


def _leaf_lines(node: yaml.Node | None, path: KeyPath) -> list[tuple[KeyPath, int]]:
    """(path, line from 0) where a comment may be added: after a scalar's end, or beside a list's key."""
    if isinstance(node, yaml.MappingNode) and node.value:
        found = []
        for key, value in node.value:
            inner = (*path, str(key.value))
            found += _leaf_lines(value, inner)
            if isinstance(value, yaml.SequenceNode) and value.value:
                found.append((inner, key.start_mark.line))
        return found
    if isinstance(node, yaml.SequenceNode) and node.value:
        return [leaf for i, item in enumerate(node.value) for leaf in _leaf_lines(item, (*path, i))]
    return [] if node is None else [(path, node.end_mark.line)]


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a config file, with the short forms that a file may use."""
    from dist_train.config.schema import RunConfig

    schema = RunConfig.model_json_schema()
    parts = schema["$defs"]
    component = parts["Component"]
    parts["Component"] = {
        "description": component["description"],
        "anyOf": [{"type": "string"}, {**component, "title": "target and args"}],
    }
    for name in ("StrategyConfig", "SinkConfig"):
        adapter = parts[name]
        parts[name] = {
            "description": adapter["description"],
            "anyOf": [
                {"type": "string"},
                {
                    "type": "object",
                    "properties": adapter["properties"],
                    "required": adapter.get("required", []),
                    "additionalProperties": True,
                },
            ],
        }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
