"""Which checkpoints hold weights that are not finite, and the newest of those that do not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dist_train.checkpoint.store.checkpoint_names import step_names
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import read_reserved

logger = logging.getLogger(__name__)

# Of state.json's reserved part; there only where something is not finite.
KEY = "non_finite"


def is_finite(reserved: Mapping[str, Any]) -> bool:
    """Whether a checkpoint with this reserved part holds finite weights."""
    return not reserved.get(KEY)


def read_non_finite(storage: CheckpointStorage, name: str) -> list[str]:
    """The tensors of a checkpoint that are not finite, as its save noted them; empty where all are."""
    return [str(key) for key in read_reserved(storage, name).get(KEY) or ()]


def newest_finite(storage: CheckpointStorage, steps: Iterable[int]) -> int | None:
    """The newest of these steps whose weights are finite."""
    names = step_names(storage)
    for step in sorted(steps, reverse=True):
        if step in names and is_finite(read_reserved(storage, names[step])):
            return step
    return None


def warn_of_saved(storage: CheckpointStorage, step: int, keys: Sequence[str]) -> None:
    """Say that a checkpoint which was just committed is not finite, and which one is kept for it."""
    if not keys:
        return
    last = newest_finite(storage, step_names(storage))
    kept = "no earlier one is there" if last is None else f"step {last} is kept as the last finite one"
    logger.warning("step %d is saved with weights that are not finite (%s); %s", step, ", ".join(keys), kept)


def warn_of_restored(storage: CheckpointStorage, step: int, reserved: Mapping[str, Any]) -> None:
    """Say that the checkpoint which was restored is not finite."""
    if is_finite(reserved):
        return
    last = newest_finite(storage, (other for other in step_names(storage) if other < step))
    instead = "there is no earlier finite one" if last is None else f"the last finite one is step {last}"
    load = "" if last is None else f": manager.load({last}, state)"
    logger.warning("step %d holds weights that are not finite; %s%s", step, instead, load)
