"""Leaving the process groups, without the hang that torch has in store for it."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from typing import Any

import torch.distributed as torch_dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.bounds import bound_process_end, bounded_end
from dist_train.distributed.control import Control
from dist_train.errors import ConfigError

logger = logging.getLogger(__name__)

# Destroying takes milliseconds; whatever takes this long would take for ever.
_DESTROY_S = 20.0
_PROCESS_END_S = 10.0


@dataclass(frozen=True)
class Leaving:
    """How a rank leaves.

    Args:
        failed: by an exception.
        barrier_s: how long to wait for the other ranks.
        exiting: from atexit.
    """

    failed: bool
    barrier_s: float
    exiting: bool = False


def leave(control: Control, how: Leaving) -> bool:
    """Destroy the groups, all ranks together; True when that was done.

    After a failure nobody waits: peers may be dead or waiting in a collective, so the sockets are
    left to the process's end, which is bounded.
    """
    if control.group is None:
        return True
    if how.failed:
        bound_process_end(_PROCESS_END_S, exiting=how.exiting)
        return False
    try:
        control.barrier(how.barrier_s)
    except RuntimeError as error:
        logger.warning(
            "rank %d leaves without the others: %s", control.rank, str(error).strip().partition("\n")[0]
        )
        bound_process_end(_PROCESS_END_S, exiting=how.exiting)
        return False
    with bounded_end(_DESTROY_S):
        release_reducers()
        torch_dist.destroy_process_group()
    return True


def release_reducers() -> int:
    """Free the C++ reducer of every living DDP object; returns how many there were.

    A reducer that dies after destroy_process_group() holds the last reference to the group: its
    destructor then joins gloo's threads while holding the GIL, and one of them may wait for the GIL
    to free its last work. Freed before, it hangs nobody, wherever the user keeps the model.
    """
    living = [obj for obj in gc.get_objects() if issubclass(type(obj), DistributedDataParallel)]
    for module in living:
        held: Any = module
        if held.__dict__.get("reducer") is None:
            continue
        held.reducer = None
        # DDP's logger is a second owner of the reducer.
        held.logger = None
        module.register_forward_pre_hook(_refuse_forward)
    return len(living)


def _refuse_forward(module: nn.Module, inputs: object) -> None:
    raise ConfigError(
        "this model was prepared for a run that is closed",
        cause="its process group is gone",
        mend="use dt.unwrap(model), or close the run later",
    )
