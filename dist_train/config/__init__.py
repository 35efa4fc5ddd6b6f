"""The configuration of a run: typed schema, strict loading, overrides, the origin of every value.

No torch here, and nothing (pydantic included) is loaded before its first use.

schema, launch_section, component   every key of a config, as pydantic models
load            load a file with overrides and flags: `load_config`, `Resolved`
yaml_reader     strict YAML with line numbers
overrides       parse `trainer.epochs=3`
layers          merge file, overrides and flags; remember the origin of each value
validate        apply the schema; turn its errors into problems with path, line and hint
problems        collect problems and raise them as one ConfigError
static_check    check targets, arguments and rules across sections without importing components
components      resolve a target by import; check one without
find_source, bindings, signatures   read a module's source: where it is, its names, its arguments
shortcuts, shorthand   short names of components; the short form of a section
dump, explain   a config as YAML and its hash; the origin of each value; the JSON Schema
secret_names    which environment variables look like secrets
bucket_url      s3://BUCKET/PREFIX and the like, parsed and checked
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

# Public name -> the module that defines it.
_PUBLIC = {
    "CheckpointConfig": "dist_train.config.schema",
    "Component": "dist_train.config.component",
    "DataConfig": "dist_train.config.schema",
    "KeepBest": "dist_train.config.schema",
    "LaunchConfig": "dist_train.config.launch_section",
    "LoggingConfig": "dist_train.config.schema",
    "Resolved": "dist_train.config.load",
    "ResilienceConfig": "dist_train.config.schema",
    "RunConfig": "dist_train.config.schema",
    "SHORTCUTS": "dist_train.config.shortcuts",
    "StrategyConfig": "dist_train.config.component",
    "TrainerConfig": "dist_train.config.schema",
    "check_arguments": "dist_train.config.components",
    "check_config": "dist_train.config.static_check",
    "check_target": "dist_train.config.components",
    "config_xxh3": "dist_train.config.dump",
    "dump_config": "dist_train.config.dump",
    "is_secret_name": "dist_train.config.secret_names",
    "json_schema": "dist_train.config.explain",
    "load_config": "dist_train.config.load",
    "load_text": "dist_train.config.load",
    "resolve": "dist_train.config.components",
    "show": "dist_train.config.explain",
}

if TYPE_CHECKING:
    from dist_train.config.component import Component, StrategyConfig
    from dist_train.config.components import check_arguments, check_target, resolve
    from dist_train.config.dump import config_xxh3, dump_config
    from dist_train.config.explain import json_schema, show
    from dist_train.config.launch_section import LaunchConfig
    from dist_train.config.load import Resolved, load_config, load_text
    from dist_train.config.schema import (
        CheckpointConfig,
        DataConfig,
        KeepBest,
        LoggingConfig,
        ResilienceConfig,
        RunConfig,
        TrainerConfig,
    )
    from dist_train.config.secret_names import is_secret_name
    from dist_train.config.shortcuts import SHORTCUTS
    from dist_train.config.static_check import check_config

__all__ = [
    "SHORTCUTS",
    "CheckpointConfig",
    "Component",
    "DataConfig",
    "KeepBest",
    "LaunchConfig",
    "LoggingConfig",
    "ResilienceConfig",
    "Resolved",
    "RunConfig",
    "StrategyConfig",
    "TrainerConfig",
    "check_arguments",
    "check_config",
    "check_target",
    "config_xxh3",
    "dump_config",
    "is_secret_name",
    "json_schema",
    "load_config",
    "load_text",
    "resolve",
    "show",
]

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
