"""Remove old checkpoints: decided from what is stored, and only after the newest one was read back."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.layout import removal_name
from dist_train.checkpoint.store.checkpoint_names import step_names
from dist_train.checkpoint.store.last_finite import newest_finite
from dist_train.checkpoint.store.quarantine import quarantine
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import check_checkpoint, read_committed, read_score
from dist_train.errors import CheckpointError, CheckpointWriteError, ConfigError
from dist_train.rundir.step_names import step_name

logger = logging.getLogger(__name__)

# With one only, a damaged newest checkpoint would leave nothing to fall back to.
ALWAYS_KEPT = 2


@dataclass(frozen=True)
class Retention:
    """How many checkpoints are kept.

    Args:
        keep_last: the newest ones; never fewer than two.
        keep_best: those with the best scores, besides.
        best_mode: whether the smallest or the largest score is the best.

    Raises:
        ConfigError: a number that counts nothing, or another mode.
    """

    keep_last: int = 3
    keep_best: int = 0
    best_mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        if self.keep_last < 1 or self.keep_best < 0:
            raise ConfigError(
                f"keep_last={self.keep_last}, keep_best={self.keep_best}: these count checkpoints",
                hint="keep_last from 1, keep_best from 0",
            )
        if self.best_mode not in ("min", "max"):
            raise ConfigError(f"best_mode={self.best_mode!r}", hint="use 'min' or 'max'")

    def expired(
        self, scores: Mapping[int, float | None], newest: int, last_finite: int | None = None
    ) -> list[int]:
        """Return the steps to remove.

        Args:
            scores: step -> score of every committed checkpoint.
            newest: the step that was just written; it stays whatever its number.
            last_finite: the newest one whose weights are finite; it stays, too.
        """
        kept = {newest, last_finite, *sorted(scores)[-max(self.keep_last, ALWAYS_KEPT) :]}
        sign = 1 if self.best_mode == "min" else -1
        ranked = sorted(
            (sign * score, -step)
            for step, score in scores.items()
            if score is not None and not math.isnan(score)
        )
        kept |= {-step for _score, step in ranked[: self.keep_best]}
        return sorted(set(scores) - kept)


def apply_retention(storage: CheckpointStorage, rule: Retention, newest: int, attempt: int) -> list[int]:
    """Remove the checkpoints that `rule` does not keep; return their steps.

    Where the storage cannot be read, none is removed: the newest is committed, and the next save tries again.

    Raises:
        CheckpointWriteError: the newest checkpoint does not read back as it was written; none was removed.
    """
    try:
        return _apply(storage, rule, newest, attempt)
    except OSError as error:
        logger.warning("old checkpoints stay in %s, it could not be read: %s", storage.location, error)
        return []


def _apply(storage: CheckpointStorage, rule: Retention, newest: int, attempt: int) -> list[int]:
    found = step_names(storage)
    usable = {step: name for step, name in found.items() if _is_committed(storage, name)}
    scores = {step: read_score(storage, name) for step, name in usable.items()}
    expired = rule.expired(scores, newest, newest_finite(storage, usable))
    if not expired:
        return []
    _read_back(storage, step_name(newest))  # not as listed: a listing may lag
    for step in expired:
        try:
            storage.retire(found[step], removal_name(step, attempt))
        except OSError as error:
            logger.warning("step %s could not be removed and stays: %s", step, error)
    return expired


def _is_committed(storage: CheckpointStorage, name: str) -> bool:
    try:
        read_committed(storage, name)
    except (CheckpointError, OSError):
        return False
    return True


def _read_back(storage: CheckpointStorage, name: str) -> None:
    # Else the page cache would answer, with the very bytes that were written, whatever the disk holds.
    storage.drop_cached(name)
    try:
        check_checkpoint(storage, name)
    except DamagedCheckpoint as error:
        moved = quarantine(storage, name, f"it does not read back: {error}")
        raise CheckpointWriteError(
            f"{name} does not read back as it was written: {error.what}",
            cause=f"the storage returned other bytes; the copy is in {storage.locate(moved)}",
            hint="older checkpoints stay; check the disk or file server",
        ) from error
