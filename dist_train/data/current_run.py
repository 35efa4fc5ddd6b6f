"""The run for which a loader is made: a rank of a job must have joined it."""

from __future__ import annotations

import torch.distributed as torch_dist

from dist_train.distributed.run import Run, current
from dist_train.env import RankInfo
from dist_train.errors import ConfigError


def run_for_loader() -> Run | None:
    """The open run; None in a process that is alone.

    Raises:
        ConfigError: this process is one of several ranks, and no run is open: each rank would read the
            whole data set.
    """
    run = current()
    if run is not None:
        return run
    rank, world_size = _rank_and_size()
    if world_size == 1:
        return None
    raise ConfigError(
        f"dt.loader on rank {rank} of {world_size}, and dt.init has not been called, or its run is closed",
        cause="every rank would read the whole data set: each sample would be trained "
        f"{world_size} times per epoch",
        hint="run = dt.init(seed=0) before dt.loader, and close the run last\n"
        "         (the whole data set on each rank, on purpose: dt.data.ExactLoader(dataset, batch_size))",
    )


def _rank_and_size() -> tuple[int, int]:
    if torch_dist.is_available() and torch_dist.is_initialized():
        return torch_dist.get_rank(), torch_dist.get_world_size()
    info = RankInfo.from_env()
    return info.rank, info.world_size
