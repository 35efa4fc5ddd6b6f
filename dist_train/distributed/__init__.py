"""Process groups, devices, rank facts and what every rank must agree on."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Control": "dist_train.distributed.control",
    "Run": "dist_train.distributed.run",
    "ShareBox": "dist_train.distributed.share",
    "current": "dist_train.distributed.run",
}

if TYPE_CHECKING:
    from dist_train.distributed.control import Control as Control
    from dist_train.distributed.run import Run as Run
    from dist_train.distributed.run import current as current
    from dist_train.distributed.share import ShareBox as ShareBox

__all__ = ["Control", "Run", "ShareBox", "current"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
