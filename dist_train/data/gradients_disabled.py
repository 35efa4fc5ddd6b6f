"""Warn where a training loader is iterated with gradients disabled: its counts are not an evaluation's."""

from __future__ import annotations

import logging

import torch

logger = logging.getLogger(__name__)


class GradientsDisabled:
    """Of one loader."""

    def __init__(self) -> None:
        self._warned = False

    def warn_once(self) -> None:
        """Log one warning if gradients are disabled where a batch is handed out."""
        if self._warned or torch.is_grad_enabled():
            return
        self._warned = True
        logger.warning(
            "a training loader is iterated with gradients disabled: where a rank has no sample in a step it "
            "gets one of another rank, which an evaluation would count twice, and a loop that is left "
            "early goes on where it was left; dt.loader(dataset, batch_size, evaluation=True) does neither"
        )
