"""Move checkpoints to where no reader looks for one; the newest ten are kept there."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from dist_train.checkpoint.format.layout import QUARANTINE
from dist_train.checkpoint.store.storage import CheckpointStorage

logger = logging.getLogger(__name__)

# Enough for every timeline that a person may want back; a training that goes wrong at each restart must not
# fill the disk.
KEPT = 10


def quarantine(storage: CheckpointStorage, name: str, reason: str) -> str:
    """Move a committed checkpoint to `quarantine/` and log why; return its new name."""
    return quarantine_all(storage, {name: reason})[0]


def quarantine_all(storage: CheckpointStorage, reasons: Mapping[str, str]) -> list[str]:
    """Move checkpoints (name -> why) to `quarantine/`; return their new names.

    Of those that were there before, the oldest are removed where there are more than KEPT in all; none of
    the ones that are moved now is.
    """
    moved = []
    for name, reason in reasons.items():
        moved.append(storage.quarantine(name))
        logger.warning("moved %s to %s: %s", name, moved[-1], reason)
    if moved:
        _remove_oldest(storage, moved)
    return moved


def _remove_oldest(storage: CheckpointStorage, moved: list[str]) -> None:
    try:
        older = [name for name in storage.quarantined() if name not in moved]
        for name in older[: max(0, len(older) + len(moved) - KEPT)]:
            storage.remove(name)
            logger.warning("removed %s: %s/ keeps the newest %s", name, QUARANTINE, KEPT)
    except OSError as error:
        logger.warning("%s/ could not be cleared: %s", QUARANTINE, error)
