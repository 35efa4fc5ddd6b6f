"""What a run is: typed schema, strict loading, overrides, the origin of every value.

Pure data: nothing here loads torch, and nothing (pydantic included) is loaded before its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public name -> the module that owns it.
_PUBLIC = {
    "CheckpointConfig": "dist_train.config.schema",
    "Component": "dist_train.config.component",
    "DataConfig": "dist_train.config.schema",
    "KeepBest": "dist_train.config.schema",
    "LaunchConfig": "dist_train.config.launch",
    "LoggingConfig": "dist_train.config.schema",
    "Resolved": "dist_train.config.load",
    "ResilienceConfig": "dist_train.config.schema",
    "RunConfig": "dist_train.config.schema",
    "SHORTCUTS": "dist_train.config.shortcuts",
    "StrategyConfig": "dist_train.config.component",
    "TrainerConfig": "dist_train.config.schema",
    "check_arguments": "dist_train.config.components",
    "check_config": "dist_train.config.check",
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
    from dist_train.config.check import check_config
    from dist_train.config.component import Component, StrategyConfig
    from dist_train.config.components import check_arguments, check_target, resolve
    from dist_train.config.dump import config_xxh3, dump_config
    from dist_train.config.explain import json_schema, show
    from dist_train.config.launch import LaunchConfig
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


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dist_train.config' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
