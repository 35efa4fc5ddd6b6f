"""Where the tensors of a file that is read come to lie: memory of this process, or of all ranks of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dist_train.checkpoint.format.tensor_bytes import new_tensor

# Fill this view with the next bytes of the file.
ReadInto = Callable[[memoryview], None]


class TensorMemory(Protocol):
    """Takes the tensors of one checkpoint, one after the other."""

    def fill(self, dtype: torch.dtype, shape: Sequence[int], read_into: ReadInto) -> torch.Tensor:
        """Return a tensor whose bytes `read_into` has given."""


class OwnMemory:
    """Memory of this process: each tensor is allocated by itself."""

    def fill(self, dtype: torch.dtype, shape: Sequence[int], read_into: ReadInto) -> torch.Tensor:
        """Return a new tensor whose bytes `read_into` has given."""
        tensor, view = new_tensor(shape, dtype)
        read_into(view)
        return tensor
