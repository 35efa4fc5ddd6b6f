"""Which gradients an optimizer step has applied, so that a save can tell those that it would lose."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch.optim import Optimizer

from dist_train.distributed.parameter_shards import own_part

if TYPE_CHECKING:
    from collections.abc import Iterator

_ATTRIBUTE = "_dist_train_applied_version"
# Parameters looked at; a loop's backward passes reach all of them or the first ones.
_PROBES = 4


def mark_stepped(optimizer: Optimizer) -> None:
    """Note on some gradients that this version of them has been applied."""
    for grad in _probes(optimizer):
        setattr(grad, _ATTRIBUTE, _version(grad))


def has_pending_gradients(optimizer: Optimizer) -> bool:
    """Whether gradients were added since the last step; waits for the device.

    Gradients that are zero, or not finite (a step that a loop leaves out), are not pending.
    """
    changed = [grad for grad in _probes(optimizer) if getattr(grad, _ATTRIBUTE, None) != _version(grad)]
    pending = [own_part(grad) for grad in changed]
    if not all(bool(torch.isfinite(grad).all()) for grad in pending):
        return False
    return any(bool(grad.any()) for grad in pending)


def _probes(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    grads = (p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None)
    return islice(grads, _PROBES)


def _version(grad: torch.Tensor) -> tuple[int, int]:
    # fully_shard adds to the part that a sharded gradient holds, whose own version does not change.
    return grad._version, own_part(grad)._version
