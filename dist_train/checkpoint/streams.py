"""Random streams of a rank out of a checkpoint: as they were, or derived anew and said aloud."""

from __future__ import annotations

import logging

import torch

from dist_train.checkpoint.reader import Loaded
from dist_train.checkpoint.rng import ALWAYS, CUDA, cuda_in_use, derive_cuda, derive_rng, restore_rng
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)


def check_streams(loaded: Loaded, rank: int, world_size: int) -> None:
    """At the same world size every stream of this rank must be there.

    Raises:
        CheckpointError: naming those that are not.
    """
    if loaded.manifest.world_size != world_size:
        return
    wanted = {*ALWAYS, CUDA} if _saved_on_gpu(loaded) and cuda_in_use() else set(ALWAYS)
    missing = sorted(wanted - set(loaded.below(f"rank{rank}/rng")))
    if missing:
        raise CheckpointError(f"{loaded.path.name} has no random stream {', '.join(missing)} of rank {rank}")


def apply_streams(loaded: Loaded, rank: int, world_size: int) -> bool:
    """Restore them, last of all; True if each is as it was."""
    seed = loaded.reserved.get("seed")
    base, step = seed if isinstance(seed, int) else 0, loaded.manifest.step
    if loaded.manifest.world_size != world_size:
        derive_rng(base, step, rank)
        if rank == 0:
            logger.warning(
                "step %s was saved by %s ranks and is loaded by %s: each rank's random streams are derived "
                "anew from (seed %s, step, rank), and all ranks take rank 0's buffers",
                step,
                loaded.manifest.world_size,
                world_size,
                base,
            )
        return False
    streams = loaded.below(f"rank{rank}/rng")
    if cuda_in_use() == _saved_on_gpu(loaded):
        restore_rng(streams)
        return True
    if cuda_in_use():
        restore_rng({**streams, CUDA: torch.cuda.get_rng_state()})
        derive_cuda(base, step, rank)
    else:
        restore_rng(streams)
    if rank == 0:
        logger.warning(
            "step %s was saved %s a GPU and is loaded %s one: the GPU's random stream is not restored",
            step,
            "on" if _saved_on_gpu(loaded) else "without",
            "on" if cuda_in_use() else "without",
        )
    return False


def _saved_on_gpu(loaded: Loaded) -> bool:
    return any(key.startswith("rank") and key.endswith(f"/rng/{CUDA}") for key in loaded.tensors)
