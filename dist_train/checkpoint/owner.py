"""Who this process is when nobody said it: the current run, the agent's environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as torch_dist

from dist_train.distributed.control import Control
from dist_train.distributed.determinism import facts
from dist_train.distributed.run import current
from dist_train.env import RankInfo, WorkerEnv
from dist_train.errors import ConfigError

if TYPE_CHECKING:
    from dist_train.distributed.control import JsonValue


def current_control() -> Control:
    """The current run's control group; that of a single process where there is no run.

    Raises:
        ConfigError: there are several ranks and no run: each would take itself for the only writer.
    """
    run = current()
    if run is not None:
        return run.control
    grouped = torch_dist.is_available() and torch_dist.is_initialized()
    world_size = torch_dist.get_world_size() if grouped else RankInfo.from_env().world_size
    if world_size > 1:
        raise ConfigError(
            f"this is one of {world_size} ranks, but there is no run to agree with the others by",
            cause="each rank would take itself for the only writer",
            mend="call dt.init() first, or give the manager control=",
        )
    return Control()


def who_writes(run_id: str, attempt: int) -> tuple[str, int | None]:
    """Run id and attempt number; no number where neither the caller nor an agent gave one."""
    if run_id or attempt:
        return run_id, attempt
    worker = WorkerEnv.from_env()
    return (worker.run_id, worker.attempt) if worker is not None else ("", None)


def run_seed() -> int | None:
    """The current run's seed."""
    run = current()
    return None if run is None else run.seed


def determinism_facts() -> dict[str, JsonValue]:
    """What the bits depend on, here."""
    run = current()
    return facts(torch.device("cpu") if run is None else run.device)
