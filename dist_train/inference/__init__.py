"""A trained model at work: batches in, results out in their order, one process per device."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "BatchFailed": "dist_train.inference.failures",
    "Predictor": "dist_train.inference.predictor",
}

if TYPE_CHECKING:
    from dist_train.inference.failures import BatchFailed as BatchFailed
    from dist_train.inference.predictor import Predictor as Predictor

__all__ = ["BatchFailed", "Predictor"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dist_train.inference' has no attribute {name!r}")
