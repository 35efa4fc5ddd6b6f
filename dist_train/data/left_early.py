"""Warn where a loop over a training loader is left with a batch that it read and did not train on."""

from __future__ import annotations

import logging
import sys

from dist_train.distributed.gradient_weights.batch_weight import BatchWeightSlot

logger = logging.getLogger(__name__)


class LeftEarly:
    """Of one loader.

    Args:
        is_main: one rank says it.
    """

    def __init__(self, is_main: bool) -> None:
        self._silent = not is_main

    def warn_once(self, slot: BatchWeightSlot | None) -> None:
        """Log one warning: the samples of such a batch are missing from this epoch's training."""
        if self._silent or slot is None or not slot.left_unused or sys.is_finalizing():
            return
        self._silent = True
        logger.warning(
            "a loop over a training loader was left with a batch that was not trained on; the next loop goes "
            "on after it, so that this epoch misses its samples; to look at a batch: "
            "next(iter(dt.loader(dataset, n, evaluation=True))); to end a loop early: break after "
            "optimizer.step(), not at the next batch"
        )
