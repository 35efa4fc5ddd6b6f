"""Models that predictors are tried with: they double, raise, or end their process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn


class Doubles(nn.Module):
    """Twice the input, by a weight; tells in which process it was computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"out": self.drop(x * self.weight), "pid": os.getpid()}


class Raises(nn.Module):
    """On a batch that holds `bad`."""

    def __init__(self, bad: float) -> None:
        super().__init__()
        self.bad = bad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x == self.bad).any():
            raise ValueError(f"this model does not like {self.bad:g}")
        return x


class Dies(nn.Module):
    """Is killed on a batch that holds `deadly`, `times` times in all; each leaves a mark in `folder`."""

    def __init__(self, folder: Path, deadly: float, times: int) -> None:
        super().__init__()
        self.folder, self.deadly, self.times = folder, deadly, times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        marks = len(list(self.folder.glob("death-*")))
        if (x == self.deadly).any() and marks < self.times:
            (self.folder / f"death-{marks}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return x


class DiesDelivering(Dies):
    """The same, with its result computed and about to be sent."""

    def forward(self, x: torch.Tensor) -> Any:
        return Delivered(super(), x)


class Delivered:
    """A tensor; packing it may end the process."""

    def __init__(self, dies: Any, x: torch.Tensor) -> None:
        self.dies, self.x = dies, x

    def __reduce__(self) -> Any:
        return torch.Tensor.clone, (self.dies.forward(self.x),)


class Slow(nn.Module):
    """The smaller the number, the longer it takes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(float(0.02 / (1 + x.max())))
        return x


class Counted:
    """Numbers as batches, and how many have been taken."""

    def __init__(self, n: int) -> None:
        self.n, self.taken = n, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(self.n):
            self.taken += 1
            yield torch.full((2,), float(number))


def numbers(results: Iterable[Any]) -> list[int]:
    """What came out, by its first element."""
    return [int(result[0]) for result in results]
