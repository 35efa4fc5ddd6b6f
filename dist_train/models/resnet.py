"""Residual networks of basic blocks with torchvision's parameter names, so that its weights load."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from dist_train.errors import ConfigError

ARCHITECTURES = {"resnet10": (1, 1, 1, 1), "resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}


class ResNet(nn.Module):
    """A stem, four groups of blocks (each but the first halves the image), global average pooling.

    Args:
        arch: resnet10, resnet18 or resnet34.
        classes: number of outputs.
        channels: of the images: 1 grey, 3 colour.
        width: channels of the first group; torchvision's have 64.
        small_images: a stem of 3 x 3 without pooling, for images of less than 64 pixels.
    """

    def __init__(
        self,
        arch: str = "resnet18",
        classes: int = 1000,
        channels: int = 3,
        width: int = 64,
        small_images: bool = False,
    ) -> None:
        super().__init__()
        if arch not in ARCHITECTURES:
            raise ConfigError(f"arch {arch!r} is unknown", hint=f"one of {', '.join(ARCHITECTURES)}")
        if small_images:
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small_images else nn.MaxPool2d(3, stride=2, padding=1)
        counts = ARCHITECTURES[arch]
        self.layer1 = _group(width, width, counts[0], stride=1)
        self.layer2 = _group(width, 2 * width, counts[1], stride=2)
        self.layer3 = _group(2 * width, 4 * width, counts[2], stride=2)
        self.layer4 = _group(4 * width, 8 * width, counts[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [batch, channels, height, width] -> logits [batch, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self._logits(x)

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits

    def pipeline_layers(self) -> list[nn.Module | tuple[Callable[[torch.Tensor], torch.Tensor], str]]:
        """What `forward` calls, one after the other."""
        groups = (self.layer1, self.layer2, self.layer3, self.layer4)
        blocks = [block for group in groups for block in group]
        return [self.conv1, self.bn1, self.relu, self.maxpool, *blocks, (self._logits, "fc")]


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, num_out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(num_out)
        self.downsample: nn.Module | None = None
        if num_in != num_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride=stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        out: torch.Tensor = self.relu(self.bn2(self.conv2(x)) + shortcut)
        return out


def _group(num_in: int, num_out: int, count: int, stride: int) -> nn.Sequential:
    blocks = [_Block(num_in if n == 0 else num_out, num_out, stride if n == 0 else 1) for n in range(count)]
    return nn.Sequential(*blocks)
