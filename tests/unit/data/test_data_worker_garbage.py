"""A loader worker does not collect its rank's garbage."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from torch.utils.data import Dataset

from dist_train.data.exact_loader import ExactLoader


class Owner:
    """Garbage in a cycle that must be destroyed in its own process only, like a store that joins threads."""

    def __init__(self, pipe: int) -> None:
        self.me = self
        self.pipe = pipe

    def __del__(self) -> None:
        os.write(self.pipe, b"%d\n" % os.getpid())


class Collecting(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        gc.collect()
        return torch.tensor(index)


@pytest.mark.timeout(60)
def test_the_ranks_garbage_is_not_collected_in_its_workers() -> None:
    read, write = os.pipe()
    gc.collect()
    gc.disable()  # the garbage is there when the workers are forked
    try:
        Owner(write)
        assert len(list(ExactLoader(Collecting(), batch_size=2, workers=2).micro_batches())) == 2
    finally:
        gc.enable()
    gc.collect()
    os.close(write)
    with os.fdopen(read) as reader:
        assert reader.read().split() == [str(os.getpid())]
