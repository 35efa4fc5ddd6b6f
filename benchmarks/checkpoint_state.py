"""What is saved and loaded where checkpoints are measured: a model with its optimizer."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import torch

from dist_train.checkpoint.format.tensor_bytes import view_bytes

MEGA = 1 << 20


class State:
    """A model with its Adam, as after the first step."""

    def __init__(self, count: int, size: int) -> None:
        parameters = [torch.nn.Parameter(torch.randn(size)) for _ in range(count)]
        self.model = torch.nn.ParameterList(parameters)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def for_ours(self) -> dict[str, Any]:
        """What CheckpointManager takes."""
        return {"model": self.model, "optimizer": self.optimizer}

    def for_torch(self) -> dict[str, Any]:
        """What torch.save and DCP take."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def flat(self) -> dict[str, torch.Tensor]:
        """Every tensor by a name."""
        found = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{key}": tensor for key, tensor in values.items()}
        return found

    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.flat().values())

    def views(self) -> list[memoryview]:
        """The memory of every tensor."""
        return [view_bytes(tensor) for tensor in self.flat().values()]

    def touch(self) -> None:
        """Make all memory this process's own: what was forked is copied at its first change."""
        with torch.no_grad():
            for tensor in self.flat().values():
                tensor.add_(0)


def map_large_tensors() -> None:
    """Have each large tensor lie in a mapping of its own, as in a process that has just begun.

    glibc's allocator would else keep, from the setting up, what every case then gets as its new memory.
    """
    m_mmap_threshold = -3
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).mallopt(m_mmap_threshold, MEGA)
