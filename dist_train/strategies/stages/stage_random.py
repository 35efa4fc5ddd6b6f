"""Random numbers in a pipeline: alike on all stages in what calls the model, a stage's own in its layers.

The ranks of one pipeline read the same data, and each runs the task's code: noise that the first stage adds
to a model's input must be the noise that the last one has in its loss. A stage's layers draw others than its
neighbours', and unequally many (dropout). A checkpoint holds one RNG state for all ranks of a pipeline. So
what draws begins with one number that all stages draw; from it generators are seeded, by stage or alike, and
the state of before is put back at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from dist_train.distributed.seeding import derive, seed_all


@contextmanager
def numbers_alike() -> Iterator[int]:
    """Draw inside the block the same numbers on all stages; gives the number that seeds them."""
    with _numbers_from_one_draw() as first:
        seed_all(derive(first), 0)
        yield first


def begin_micro_batch(first: int, micro: int) -> None:
    """Seed alike on all stages, which have done unlike passes before this one.

    Args:
        first: what `numbers_alike` gave for the step.
        micro: the number of the micro-batch.
    """
    seed_all(derive(first, micro), 0)


@contextmanager
def numbers_of_stage(stage: int) -> Iterator[None]:
    """Draw from a stage's own generators inside the block."""
    with _numbers_from_one_draw() as first:
        seed_all(derive(first, stage), 0)
        yield


@contextmanager
def _numbers_from_one_draw() -> Iterator[int]:
    first = int(torch.randint(0, 2**62, ()).item())
    python, legacy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    cuda = torch.cuda.get_rng_state() if in_use else None
    try:
        yield first
    finally:
        random.setstate(python)
        np.random.set_state(legacy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)
