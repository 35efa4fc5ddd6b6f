"""Derive an independent seed for every rank and purpose from the run's one seed; keep the RNG state."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dist_train.errors import ConfigError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive(seed: int, *path: int) -> int:
    """A 64-bit seed for one purpose; (seed 0, rank 1) and (seed 1, rank 0) give unrelated ones."""
    state = _mix(seed & _MASK)
    for part in path:
        state = _mix((state + _GOLDEN * (2 * (part & _MASK) + 1)) & _MASK)
    return state


def _mix(value: int) -> int:
    """The finaliser of splitmix64."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def check_seed(seed: int) -> int:
    """The seed itself; ConfigError unless it is a whole number from 0 to 2^63 - 1."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed {seed!r} is not a whole number from 0 to 2^63 - 1")
    return seed


def seed_all(seed: int, rank: int) -> None:
    """Seed python's, numpy's and torch's global generators (CUDA's too), differently for each rank."""
    random.seed(derive(seed, rank, 0))
    word = derive(seed, rank, 1)
    np.random.seed([word & 0xFFFFFFFF, word >> 32])
    torch.manual_seed(derive(seed, rank, 2))


class RankSeeding:
    """When a rank's generators begin to differ from the other ranks'.

    `dt.init` seeds all ranks alike, so that a split or a permutation drawn by the script is the same on
    all of them. `dt.prepare` calls `begin`: from there on dropout and noise differ between ranks.

    Args:
        seed: None: the generators were not seeded, and `begin` leaves them alone.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed = seed
        self._begun = False

    def begin(self, data_rank: int) -> None:
        """Seed by the data coordinate; does nothing at the second call, or after `skip`.

        Args:
            data_rank: ranks that read the same data draw the same numbers. 0 keeps its RNG state, so that one
                process is not changed by it.
        """
        if not self._begun and self._seed is not None and data_rank:
            seed_all(self._seed, data_rank)
        self._begun = True

    def skip(self) -> None:
        """Make `begin` do nothing: this rank's own RNG state was restored from a checkpoint."""
        self._begun = True


def cuda_in_use() -> bool:
    """Return True once this process has initialized CUDA; the call does not initialize it."""
    return torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


@contextmanager
def rng_kept() -> Iterator[None]:
    """Put all RNG states back on the way out, also after an exception."""
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    # Only the current device: a rank uses no other.
    cuda = torch.cuda.get_rng_state() if cuda_in_use() else None
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)
