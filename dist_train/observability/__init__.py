"""Only tells: where training and evaluation records go. Each sink is one file; no torch here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Sink": "dist_train.observability.sink",
    "SinkContext": "dist_train.observability.sink",
    "Sinks": "dist_train.observability.sinks",
}

if TYPE_CHECKING:
    from dist_train.observability.sink import Sink as Sink
    from dist_train.observability.sink import SinkContext as SinkContext
    from dist_train.observability.sinks import Sinks as Sinks

__all__ = ["Sink", "SinkContext", "Sinks"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
