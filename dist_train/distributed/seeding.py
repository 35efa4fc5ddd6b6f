"""Seeds: one number of the user's, and independent streams for every rank and purpose."""

from __future__ import annotations

import random

import numpy as np
import torch

from dist_train.errors import ConfigError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def derive(seed: int, *path: int) -> int:
    """A 64-bit seed for one purpose; (0, rank 1) and (1, rank 0) share nothing."""
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
    """Seed python's, numpy's and torch's global generators (CUDA's too).

    Ranks get distinct streams, so that dropout differs between them. Parameters drawn on different
    ranks therefore differ as well, and preparing a model gives all ranks rank 0's.
    """
    random.seed(derive(seed, rank, 0))
    word = derive(seed, rank, 1)
    np.random.seed([word & 0xFFFFFFFF, word >> 32])
    torch.manual_seed(derive(seed, rank, 2))
