"""Moving a checkpoint out of the readers' way; what is moved is never deleted."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from dist_train.checkpoint.layout import QUARANTINE
from dist_train.checkpoint.storage import make_directory, sync_directory

logger = logging.getLogger(__name__)


def quarantine(path: Path, reason: str) -> Path:
    """Move a committed checkpoint to `quarantine/` under the first free name, and say why."""
    room = path.parent / QUARANTINE
    make_directory(room)
    number = 1
    while (target := room / f"{path.name}-{number}").exists():
        number += 1
    os.rename(path, target)
    sync_directory(path.parent)
    sync_directory(room)
    logger.warning("moved %s to %s: %s", path.name, target.relative_to(path.parent), reason)
    return target
