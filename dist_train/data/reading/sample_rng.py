"""Seed the random generators for each sample: the same bits with any number of workers and ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from dist_train.data.random_keys import MASK, word_at


def seed_global_rng(key: int, index: int) -> None:
    """Seed Python's, numpy's legacy and torch's CPU generator from word `index` of `key`.

    Not torch.manual_seed: it takes 100 us and would touch the device's generator too.
    """
    word = word_at(key, index & MASK)
    random.seed(word)
    np.random.seed(word & 0xFFFFFFFF)
    # All three are Mersenne twisters: rotate, so that they start differently.
    torch.default_generator.manual_seed(((word << 17) | (word >> 47)) & (MASK >> 1))


@dataclass(frozen=True)
class GlobalRng:
    """The state of the three generators. To take or restore it costs some 40 us, nearly all numpy's."""

    python: Any
    legacy: Any
    tensor: torch.Tensor

    @classmethod
    def take(cls) -> GlobalRng:
        """As it is now."""
        return cls(random.getstate(), np.random.get_state(), torch.default_generator.get_state())

    def restore(self) -> None:
        """Make it so again."""
        random.setstate(self.python)
        np.random.set_state(self.legacy)
        torch.default_generator.set_state(self.tensor)

    def equals(self, other: GlobalRng) -> bool:
        """Whether nothing was drawn in between."""
        return (
            self.python == other.python
            and self.legacy[2:] == other.legacy[2:]
            and bool(np.array_equal(self.legacy[1], other.legacy[1]))
            and torch.equal(self.tensor, other.tensor)
        )


@contextmanager
def global_rng_kept() -> Iterator[None]:
    """Restore the state of the three generators, whatever happens inside."""
    before = GlobalRng.take()
    try:
        yield
    finally:
        before.restore()


def may_draw(dataset: Any) -> bool:
    """Whether reading an item may draw random numbers.

    False only for `torch.utils.data.TensorDataset` itself (a subclass may augment), a dataset whose
    attribute `deterministic_items` is True, and Subset or ConcatDataset of such.
    """
    declared = getattr(dataset, "deterministic_items", None)
    if declared is not None:
        return declared is not True
    if type(dataset) is Subset:
        return may_draw(dataset.dataset)
    if type(dataset) is ConcatDataset:
        return any(may_draw(part) for part in dataset.datasets)
    return type(dataset) is not TensorDataset
