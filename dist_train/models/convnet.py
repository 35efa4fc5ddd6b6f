"""A small convolutional network for 8 x 8 images."""

from __future__ import annotations

import torch
from torch import nn


class ConvNet(nn.Module):
    """Two convolutions, each halving the image, then one hidden layer.

    Args:
        classes: number of outputs.
        width: channels of the first convolution; the second has twice as many.
        dropout: probability before the last layer.
        batch_norm: normalise after each convolution.
    """

    def __init__(
        self, classes: int = 10, width: int = 16, dropout: float = 0.0, batch_norm: bool = False
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(1, width, batch_norm),
            *_block(width, 2 * width, batch_norm),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width * 4, 4 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, 1, 8, 8] -> logits [batch, classes]."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def _block(num_in: int, num_out: int, batch_norm: bool) -> list[nn.Module]:
    norm: list[nn.Module] = [nn.BatchNorm2d(num_out)] if batch_norm else []
    return [nn.Conv2d(num_in, num_out, 3, padding=1, bias=not batch_norm), *norm, nn.ReLU(), nn.MaxPool2d(2)]
