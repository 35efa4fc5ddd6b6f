"""A small convolutional network for small square images: 8 x 8 digits, 28 x 28 Fashion-MNIST."""

from __future__ import annotations

import torch
from torch import nn

from dist_train.errors import ConfigError


class ConvNet(nn.Module):
    """Two convolutions, each halving the image, then one hidden layer.

    Args:
        classes: number of outputs.
        width: channels of the first convolution; the second has twice as many.
        dropout: probability before the last layer.
        batch_norm: normalise after each convolution.
        image_size: pixels of a side, 4 or more.
        channels: of the images: 1 grey, 3 colour.
    """

    def __init__(
        self,
        classes: int = 10,
        width: int = 16,
        dropout: float = 0.0,
        batch_norm: bool = False,
        image_size: int = 8,
        channels: int = 1,
    ) -> None:
        super().__init__()
        if image_size < 4:
            raise ConfigError(f"image_size {image_size} is halved twice", hint="give 4 or more")
        self.image_size = image_size
        self.features = nn.Sequential(
            *_block(channels, width, batch_norm),
            *_block(width, 2 * width, batch_norm),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width * (image_size // 4) ** 2, 4 * width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(4 * width, classes),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, channels, image_size, image_size] -> logits [batch, classes]."""
        if images.shape[-1] // 4 != self.image_size // 4:
            raise ConfigError(
                f"images of {images.shape[-1]} pixels a side in a ConvNet for {self.image_size}",
                hint=f"model.args.image_size={images.shape[-1]}",
            )
        logits: torch.Tensor = self.head(self.features(images))
        return logits

    def pipeline_layers(self) -> list[nn.Module]:
        """What `forward` calls, one after the other."""
        return [*self.features, *self.head]


def _block(num_in: int, num_out: int, batch_norm: bool) -> list[nn.Module]:
    norm: list[nn.Module] = [nn.BatchNorm2d(num_out)] if batch_norm else []
    return [nn.Conv2d(num_in, num_out, 3, padding=1, bias=not batch_norm), *norm, nn.ReLU(), nn.MaxPool2d(2)]
