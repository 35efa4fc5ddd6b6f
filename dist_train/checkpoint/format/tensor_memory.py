"""Where the tensors of a file that is read come to lie: memory of this process, or of all ranks of a node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from dist_train.checkpoint.format.hash_threads import HashThreads
from dist_train.checkpoint.format.large_regions import LARGE_BYTES, LargeRegions, pieces_of, tensor_in
from dist_train.checkpoint.format.tensor_bytes import new_tensor

# Fill this view with the next bytes of the file.
ReadInto = Callable[[memoryview], None]


class TensorMemory(Protocol):
    """Takes the tensors of one checkpoint, one after the other."""

    def prepare(self, sizes: Sequence[int], threads: HashThreads) -> None:
        """Expect the tensors of one file: their sizes in bytes, in order. `threads` are free to help."""

    def fill(self, dtype: torch.dtype, shape: Sequence[int], read_into: ReadInto) -> torch.Tensor:
        """Return a tensor whose bytes `read_into` has given."""


class OwnMemory:
    """Memory of this process: each tensor is allocated by itself."""

    def __init__(self) -> None:
        self._regions = LargeRegions((), HashThreads())

    def prepare(self, sizes: Sequence[int], threads: HashThreads) -> None:
        """Reserve regions for the large tensors of one file."""
        self._regions = LargeRegions(sizes, threads)

    def fill(self, dtype: torch.dtype, shape: Sequence[int], read_into: ReadInto) -> torch.Tensor:
        """Return a new tensor whose bytes `read_into` has given."""
        count = dtype.itemsize * math.prod(shape)
        region = self._regions.take() if count >= LARGE_BYTES else None
        if region is None:
            tensor, view = new_tensor(shape, dtype)
            read_into(view)
            return tensor
        for piece in pieces_of(memoryview(region)[:count]):
            self._regions.begin_ahead(len(piece))
            read_into(piece)
        return tensor_in(region, dtype, shape)
