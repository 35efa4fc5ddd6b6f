"""A small training whose parts can be made slow: each delay is given in seconds by the environment.

`PLANT=data:2,forward:2,…`: each once, in the first steps, on rank 0 (`others`: on rank 1). `STEP_S`: in each
forward pass after the third.
"""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

_PLANTED = dict(word.split(":") for word in os.environ.get("PLANT", "").split(",") if word)
RANK = os.environ.get("RANK", "0")
_EVERY_S = float(os.environ.get("STEP_S", "0"))


def delay(name: str, rank: str = "0") -> None:
    """Sleep the planted seconds, the first time."""
    if rank == RANK:
        time.sleep(float(_PLANTED.pop(name, "0")))


class Points(Dataset[tuple[Tensor, Tensor]]):
    """Points of a line."""

    def __init__(self, n: int = 64, evaluation: bool = False) -> None:
        self.n = n
        self._evaluation = evaluation
        self._read = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self._read += 1
        if self._read > 20 and not self._evaluation:
            delay("data")
        x = torch.full((1,), index / self.n)
        return x, 3 * x + 1


class Line(nn.Module):
    """A line."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self._passes = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self._passes += 1
            if self._passes > 3:
                delay("forward")
            if self._passes > 5:
                delay("others", rank="1")
            if self._passes > 3:
                time.sleep(_EVERY_S)
        else:
            delay("evaluation")
        return self.layers(x)


_fsync = os.fsync


def _slow_fsync(descriptor: int) -> None:
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith(".safetensors"):
        delay("save")
    _fsync(descriptor)


os.fsync = _slow_fsync
delay("import")
