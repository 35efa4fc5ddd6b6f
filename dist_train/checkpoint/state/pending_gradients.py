"""Refuse a save in the middle of an accumulation: gradients are not stored, and the batches are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from dist_train.distributed.gradient_weights.optimizer_steps import has_pending_gradients
from dist_train.distributed.run import current
from dist_train.errors import CheckpointError


def without_pending_gradients(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `state`; CheckpointError if an optimizer in it has not applied gradients of batches handed out.

    Seen for batches of `dt.loader` in a run whose model was prepared. A loader with accumulate= counts a
    step's batches only with its last one, so that nothing would be lost.
    """
    run = current()
    by_hand = all(getattr(value, "accumulate", 1) == 1 for value in state.values())
    if run is None or not run.batch_weight.handed_since_step or not by_hand:
        return state
    for name, value in state.items():
        if isinstance(value, Optimizer) and (run.gradients.has_unreduced() or has_pending_gradients(value)):
            raise CheckpointError(
                f"{name!r} has gradients that no step has applied, of batches that the loader counts as done",
                cause="gradients are not stored: a resume would go on without these batches",
                hint=f"save after {name}.step(), or let the loader accumulate: dt.loader(…, accumulate=4)",
            )
    return state
