"""Destroy the process groups without the hangs of torch's own teardown."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch.distributed as torch_dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.control_group import Control
from dist_train.distributed.group_teardown.deadlines import bound_process_end, bounded_end
from dist_train.distributed.group_teardown.living_objects import living_objects
from dist_train.errors import ConfigError

logger = logging.getLogger(__name__)

# Destroying the groups takes milliseconds; if it takes this long, it hangs.
_DESTROY_S = 20.0
_PROCESS_END_S = 10.0


@dataclass(frozen=True)
class Teardown:
    """How a rank leaves the process groups.

    Args:
        failed: after an exception.
        barrier_s: how long to wait for the other ranks.
        exiting: called from atexit.
    """

    failed: bool
    barrier_s: float
    exiting: bool = False


def tear_down(control: Control, how: Teardown) -> bool:
    """Destroy the groups, on all ranks together; True if they are destroyed.

    A script may have destroyed them itself, as those for torchrun do at their end: nothing is left to do.
    After a failure no rank waits: peers may be dead or waiting in a collective, so that the sockets are
    closed by the process's exit, which has a deadline.
    """
    if control.group is None or not torch_dist.is_initialized():
        return True
    if how.failed:
        bound_process_end(_PROCESS_END_S, exiting=how.exiting)
        return False
    try:
        control.barrier(how.barrier_s)
    except RuntimeError as error:
        logger.warning(
            "rank %d leaves without the others: %s",
            control.rank,
            str(error).strip().partition("\n")[0],
        )
        bound_process_end(_PROCESS_END_S, exiting=how.exiting)
        return False
    with bounded_end(_DESTROY_S):
        release_reducers()
        torch_dist.destroy_process_group()
    return True


def release_reducers() -> int:
    """Free the C++ reducer of every living DDP object; returns how many there were.

    A reducer that outlasts destroy_process_group() holds the last reference to the group: its
    destructor then joins gloo's threads while holding the GIL, and one of them may wait for the GIL
    to free its last work. Freed before, it cannot deadlock, wherever the user keeps the model.
    """
    living = living_objects(DistributedDataParallel)
    for module in living:
        held: Any = module
        if held.__dict__.get("reducer") is None:
            continue
        held.reducer = None
        # DDP's logger holds a second reference to the reducer.
        held.logger = None
        module.register_forward_pre_hook(_refuse_forward)
    return len(living)


def _refuse_forward(module: nn.Module, inputs: object) -> None:
    raise ConfigError(
        "this model was prepared for a run that is closed",
        cause="its process group is gone",
        hint="use dt.unwrap(model), or close the run later",
    )
