"""Dump a config as YAML that loads back equal, and hash the part of it that determines the results."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from dist_train.config.shorthand import collapse
from dist_train.config.yaml_reader import StrictLoader

if TYPE_CHECKING:
    from dist_train.config.schema import RunConfig

# Where a run runs, its name, its logging and its time-outs change none of its numbers. Everything else
# is hashed, even what hardly ever matters (data.workers, checkpoint).
NOT_HASHED = ("launch", "logging", "name", "resilience")
# Keys that came later: with its default, a config has the hash that it had before the key came.
_LATER = ("parameter_groups",)
_LATER_DATA = ("drop_last", "collate_fn")
_LATER_CHECKPOINT = ("async",)
_LATER_TRAINER = (
    "callbacks",
    "on_nonfinite",
    "matmul_precision",
    "conv_tf32",
    "channels_last",
    "compile",
    "activation_checkpointing",
    "loss_scale",
)
_LATER_COMPILE = ("modules",)


class _Dumper(yaml.SafeDumper):
    """Quotes every string that our loader or a YAML 1.1 loader would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        # Indent a list's items deeper than its key.
        super().increase_indent(flow, False)

    def represent_str(self, data: str) -> yaml.ScalarNode:
        # Double quotes escape what breaks lines; in other styles PyYAML folds U+0085 into a space.
        style = '"' if data and data.splitlines() != [data] else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style)


_Dumper.add_representer(str, _Dumper.represent_str)
for _first, _patterns in StrictLoader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _patterns:
        _Dumper.add_implicit_resolver(_tag, _pattern, [_first])


def dump_config(config: RunConfig) -> str:
    """The whole config with its defaults, in block style, in the schema's order of keys.

    `load_config` reads it back equal.
    """
    return yaml.dump(
        collapse(config.model_dump()),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=2**31,
    )


def config_xxh3(config: RunConfig) -> str:
    """XXH3-128 (hex) of the canonical JSON of all but `launch`, `logging`, `name` and `resilience`."""
    import xxhash

    data = {key: value for key, value in config.model_dump().items() if key not in NOT_HASHED}
    del data["checkpoint"]["directory"]  # as little as the run directory
    trainer = config.trainer
    sections: list[tuple[Any, tuple[str, ...], dict[str, Any]]] = [
        (config, _LATER, data),
        (config.data, _LATER_DATA, data["data"]),
        (config.checkpoint, _LATER_CHECKPOINT, data["checkpoint"]),
        (trainer, _LATER_TRAINER, data["trainer"]),
    ]
    if trainer.compile is not None:
        sections.append((trainer.compile, _LATER_COMPILE, data["trainer"]["compile"]))
    for section, names, values in sections:
        for name in names:
            if getattr(section, name) == type(section).model_fields[name].get_default(
                call_default_factory=True
            ):
                del values[name]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return xxhash.xxh3_128_hexdigest(text.encode())
