"""Where parameters and gradients live: one file per strategy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Strategy": "dist_train.strategies.base",
    "prepare": "dist_train.strategies.prepare",
    "unwrap": "dist_train.strategies.unwrap",
    "warm_up": "dist_train.strategies.warmup",
}

if TYPE_CHECKING:
    from dist_train.strategies.base import Strategy as Strategy
    from dist_train.strategies.warmup import warm_up as warm_up

# `prepare` and `unwrap` are also names of modules here; the functions are dt.prepare and dt.unwrap.
__all__ = ["Strategy", "warm_up"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
