"""Restore the RNG state of a rank, or derive it again, with a warning, where it cannot be restored."""

from __future__ import annotations

import logging
import re

import torch

from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.state.rng_state import (
    ALWAYS,
    CUDA,
    derive_cuda,
    derive_rng,
    restore_rng,
)
from dist_train.checkpoint.store.reader import LoadedCheckpoint
from dist_train.distributed.place import Place
from dist_train.distributed.run import current
from dist_train.distributed.seeding import cuda_in_use
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)


def check_rng_state(loaded: LoadedCheckpoint, place: Place) -> None:
    """Check that all RNG state of this rank's data coordinate is there, if the place is one that saved.

    Raises:
        CheckpointError: naming what is missing.
    """
    if not is_same_mesh(loaded.manifest, place):
        return
    wanted = {*ALWAYS, CUDA} if _saved_on_gpu(loaded) and cuda_in_use() else set(ALWAYS)
    missing = sorted(wanted - set(loaded.below(_key(loaded.manifest, place))))
    if missing:
        raise CheckpointError(
            f"{loaded.name} has no RNG state {', '.join(missing)} of data coordinate {place.data_rank}"
        )


def apply_rng_state(loaded: LoadedCheckpoint, place: Place, rank: int) -> bool:
    """Restore the RNG state, last of all; return True if all of it is as it was saved."""
    run = current()
    if run is not None:
        run.rank_seeding.skip()  # else a dt.prepare after this would replace what is restored
    seed = loaded.reserved.get("seed")
    base, step = seed if isinstance(seed, int) else 0, loaded.manifest.step
    if not is_same_mesh(loaded.manifest, place):
        derive_rng(base, step, place.data_rank)
        if rank == 0:
            logger.warning(
                "step %s was saved by %s and is loaded by %s: each rank's RNG state is derived "
                "again from (seed %s, step, rank), and all ranks take rank 0's buffers",
                step,
                *_differing(loaded.manifest, place),
                base,
            )
        return False
    states = loaded.below(_key(loaded.manifest, place))
    if cuda_in_use() == _saved_on_gpu(loaded):
        restore_rng(states)
        return True
    if cuda_in_use():
        restore_rng({**states, CUDA: torch.cuda.get_rng_state()})
        derive_cuda(base, step, place.data_rank)
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


def is_same_mesh(manifest: Manifest, place: Place) -> bool:
    """Whether each rank is where it was at the save: what was a rank's own is its own again."""
    return (manifest.mesh, manifest.data_size) == (place.mesh, place.data_size)


def _differing(manifest: Manifest, place: Place) -> tuple[str, str]:
    """Both sides by what differs: the number of ranks, else their mesh."""
    if manifest.world_size != place.world_size:
        return f"{manifest.world_size} ranks", str(place.world_size)
    sides = ((manifest.mesh, manifest.data_size), (place.mesh, place.data_size))
    then, now = (
        f"{' x '.join(f'{name} {size}' for name, size in mesh)}, data in {data_size}"
        for mesh, data_size in sides
    )
    return then, now


def _key(manifest: Manifest, place: Place) -> str:
    return f"{'rank' if manifest.version == 1 else 'data'}{place.data_rank}/rng"


def _saved_on_gpu(loaded: LoadedCheckpoint) -> bool:
    return any(re.fullmatch(rf"(rank|data)\d+/rng/{CUDA}", key) for key in loaded.tensors)
