"""Small models for examples and tests.

convnet       `ConvNet`: two convolutions for small square images
resnet        `ResNet`: residual networks with torchvision's parameter names
transformer   `ByteTransformer`: a causal transformer over bytes
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_train.lazy_exports import lazy_exports

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

__getattr__, __dir__ = lazy_exports(__name__, _PUBLIC)
