"""Restore the RNG state of a rank, or derive it again, with a warning, where it cannot be restored."""

from __future__ import annotations

import logging
import re

import torch

from dist_train.checkpoint.state.rng_state import (
    ALWAYS,
    CUDA,
    cuda_in_use,
    derive_cuda,
    derive_rng,
    restore_rng,
)
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.distributed.run import current
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)


def check_rng_state(loaded: LoadedCheckpoint, rank: int, world_size: int) -> None:
    """Check that all RNG state of this rank is there, if the world size is the same.

    Raises:
        CheckpointError: naming what is missing.
    """
    if loaded.manifest.world_size != world_size:
        return
    wanted = {*ALWAYS, CUDA} if _saved_on_gpu(loaded) and cuda_in_use() else set(ALWAYS)
    missing = sorted(wanted - set(loaded.below(f"rank{rank}/rng")))
    if missing:
        raise CheckpointError(f"{loaded.name} has no RNG state {', '.join(missing)} of rank {rank}")


def apply_rng_state(loaded: LoadedCheckpoint, rank: int, world_size: int) -> bool:
    """Restore the RNG state, last of all; return True if all of it is as it was saved."""
    run = current()
    if run is not None:
        run.rank_seeding.skip()  # else a dt.prepare after this would replace what is restored
    seed = loaded.reserved.get("seed")
    base, step = seed if isinstance(seed, int) else 0, loaded.manifest.step
    if loaded.manifest.world_size != world_size:
        derive_rng(base, step, rank)
        if rank == 0:
            logger.warning(
                "step %s was saved by %s ranks and is loaded by %s: each rank's RNG state is derived "
                "again from (seed %s, step, rank), and all ranks take rank 0's buffers",
                step,
                loaded.manifest.world_size,
                world_size,
                base,
            )
        return False
    states = loaded.below(f"rank{rank}/rng")
    if cuda_in_use() == _saved_on_gpu(loaded):
        restore_rng(states)
        return True
    if cuda_in_use():
        restore_rng({**states, CUDA: torch.cuda.get_rng_state()})
        derive_cuda(base, step, rank)
    else:
        restore_rng(states)
    if rank == 0:
        logger.warning(
            "step %s was saved %s a GPU and is loaded %s one: the GPU's RNG state is not restored",
            step,
            "on" if _saved_on_gpu(loaded) else "without",
            "on" if cuda_in_use() else "without",
        )
    return False


def _saved_on_gpu(loaded: LoadedCheckpoint) -> bool:
    return any(re.fullmatch(rf"rank\d+/rng/{CUDA}", key) for key in loaded.tensors)
