"""Small models that examples and tests name."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "ByteTransformer": "dist_train.models.transformer",
    "ConvNet": "dist_train.models.convnet",
    "ResNet": "dist_train.models.resnet",
}

if TYPE_CHECKING:
    from dist_train.models.convnet import ConvNet as ConvNet
    from dist_train.models.resnet import ResNet as ResNet
    from dist_train.models.transformer import ByteTransformer as ByteTransformer

__all__ = ["ByteTransformer", "ConvNet", "ResNet"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'dist_train.models' has no attribute {name!r}")
