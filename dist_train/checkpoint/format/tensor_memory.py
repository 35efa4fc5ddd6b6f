"""Where the tensors of a file that is read come to lie: memory of this process, or of all ranks of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dist_train.checkpoint.format.large_pages import LargePages
from dist_train.checkpoint.format.tensor_bytes import new_tensor

# Fill this view with the next bytes of the file.
ReadInto = Callable[[memoryview], None]
Kind = tuple[torch.dtype, tuple[int, ...]]


class TensorMemory(Protocol):
    """Takes the tensors of one checkpoint, file after file."""

    def fill(self, kinds: Sequence[Kind], read_into: ReadInto) -> list[torch.Tensor]:
        """Return tensors of these dtypes and shapes, whose bytes `read_into` gives in this order."""


class OwnMemory:
    """Memory of this process: each tensor is allocated by itself."""

    def fill(self, kinds: Sequence[Kind], read_into: ReadInto) -> list[torch.Tensor]:
        """Return new tensors whose bytes `read_into` gives."""
        made = [new_tensor(shape, dtype) for dtype, shape in kinds]
        tensors = [tensor for tensor, _view in made]
        pages = LargePages(tensors)
        for tensor, view in made:
            pages.prepare(tensor)
            read_into(view)
        return tensors
