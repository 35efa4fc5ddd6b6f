"""Which checkpoints go: decided from what is on disk, and only after the newest one was read back."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dist_train.checkpoint.damage import Damaged
from dist_train.checkpoint.layout import leaving_name, step_directories
from dist_train.checkpoint.quarantine import quarantine
from dist_train.checkpoint.storage import remove_tree, sync_directory
from dist_train.checkpoint.verify import check_checkpoint, read_committed, read_score
from dist_train.errors import CheckpointError, CheckpointWriteError

logger = logging.getLogger(__name__)

# With one only, a damaged newest checkpoint would leave nothing to fall back to.
ALWAYS_KEPT = 2


@dataclass(frozen=True)
class Retention:
    """How many checkpoints stay.

    Args:
        keep_last: the newest ones; never fewer than two.
        keep_best: those with the best scores, besides.
        best_mode: whether a small or a large score is better.
    """

    keep_last: int = 3
    keep_best: int = 0
    best_mode: Literal["min", "max"] = "min"

    def doomed(self, scores: Mapping[int, float | None], newest: int) -> list[int]:
        """The steps to remove.

        Args:
            scores: step -> score of every committed checkpoint.
            newest: the step that was just written; it stays whatever its number.
        """
        kept = {newest, *sorted(scores)[-max(self.keep_last, ALWAYS_KEPT) :]}
        sign = 1 if self.best_mode == "min" else -1
        ranked = sorted(
            (sign * score, -step)
            for step, score in scores.items()
            if score is not None and not math.isnan(score)
        )
        kept |= {-step for _score, step in ranked[: self.keep_best]}
        return sorted(set(scores) - kept)


def apply_retention(directory: Path, rule: Retention, newest: int, attempt: int) -> list[int]:
    """Remove what `rule` does not keep; the steps that went.

    Raises:
        CheckpointWriteError: the newest checkpoint does not read back as it was written; nothing went.
    """
    found = step_directories(directory)
    usable = {step: path for step, path in found.items() if _is_committed(path)}
    doomed = rule.doomed({step: read_score(path) for step, path in usable.items()}, newest)
    if not doomed:
        return []
    _read_back(found[newest])
    for step in doomed:
        try:
            # Renamed first: a crash half way must not leave something that looks like a damaged checkpoint.
            leaving = directory / leaving_name(step, attempt)
            remove_tree(leaving)
            os.rename(found[step], leaving)
            sync_directory(directory)
            remove_tree(leaving)
        except OSError as error:
            logger.warning("step %s could not be removed and stays: %s", step, error)
    return doomed


def _is_committed(path: Path) -> bool:
    try:
        read_committed(path)
    except (CheckpointError, OSError):
        return False
    return True


def _read_back(path: Path) -> None:
    try:
        check_checkpoint(path)
    except Damaged as error:
        moved = quarantine(path, f"it does not read back: {error}")
        raise CheckpointWriteError(
            f"{path.name} does not read back as it was written: {error.what}",
            cause=f"the storage returned other bytes; the copy is in {moved}",
            mend="older checkpoints stay; check the disk or file server",
        ) from error
