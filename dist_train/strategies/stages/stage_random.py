"""Random numbers of a stage: others than its neighbours', and the same again after a restart.

The ranks of one pipeline read the same data and draw the same numbers outside of the model; a checkpoint
holds one RNG state for all of them. In a step each stage draws other numbers, and unequally many (its own
dropout). So a step begins with one number that all of them draw; from it each stage seeds its own, and the
state of before is put back at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dist_train.distributed.seeding import derive, seed_all


@contextmanager
def numbers_of_stage(stage: int) -> Iterator[None]:
    """Draw from a stage's own generators inside the block."""
    first = int(torch.randint(0, 2**62, ()).item())
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state() if in_use else None
    seed_all(derive(first, stage), 0)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)
