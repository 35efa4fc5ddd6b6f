"""Random numbers in a pipeline: a task's are the same on all stages, those of layers differ; both resume.

The ranks of one pipeline read the same data and draw the same numbers outside of the model; a checkpoint
holds one RNG state for all of them. In a forward pass they draw unequally many: each stage has layers of
its own (dropout), and what a task does with the output only the last stage does. What a task draws before
it calls the model (which tokens are masked) must be the same on the first stage, which computes with it,
and on the last, which knows the targets.

So each pass begins with one number that all stages draw. From it the task's generators are seeded alike, and
those of the layers by the stage; the state of before is put back behind each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dist_train.distributed.seeding import derive, rng_kept, seed_all


def draw_seed() -> int:
    """The next number of the generator that is in the same state on all stages of a pipeline."""
    return int(torch.randint(0, 2**62, ()).item())


@contextmanager
def seeded(seed: int, *purpose: int) -> Iterator[None]:
    """Draw from generators of this purpose inside the block."""
    with rng_kept():
        seed_all(derive(seed, *purpose) >> 1, 0)
        yield
