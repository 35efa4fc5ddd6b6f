"""The RNG state of a rank: seeded for model and training, and put back around code that may not draw."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dist_train.checkpoint.state.rng_state import cuda_in_use
from dist_train.distributed.seeding import derive, seed_all

_MODEL = 0x6D6F64656C


def seed_for_model(seed: int) -> None:
    """Seed alike on every rank, to draw the parameters; other numbers than those of the training."""
    seed_all(derive(seed, _MODEL) >> 1, 0)


def seed_for_training(seed: int, rank: int) -> None:
    """Seed each rank differently: dropout differs between ranks."""
    seed_all(seed, rank)


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
