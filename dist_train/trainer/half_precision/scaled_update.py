"""The update of a step in fp16: made, left out for an overflow, or left to the rule of non-finite numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from dist_train.trainer.finite_update import FiniteUpdate, start_gradient
from dist_train.trainer.half_precision.loss_scaler import SMALLEST, LossScaler, Verdict

logger = logging.getLogger(__name__)


class ScaledUpdate:
    """Applies an optimizer's step unless a gradient overflows on any rank; then it is left out on all.

    An overflow with a finite loss is what the scale is for: no rule of `on_nonfinite` hears of it, unless the
    scale is at its smallest.

    Args:
        finite: leaves the update out, and puts buffers back, where the loss itself is not finite.
        is_main: this rank says what was left out.
    """

    def __init__(
        self, scaler: LossScaler, optimizer: Optimizer, finite: FiniteUpdate | None, is_main: bool
    ) -> None:
        self.scaler = scaler
        self._optimizer = optimizer
        self._finite = finite
        self._is_main = is_main

    def start(self, loss: Tensor) -> Tensor:
        """The gradient that a backward pass begins with: the scale, or nan for a loss that is not finite."""
        return start_gradient(loss) * self.scaler.factor

    def apply(self, losses: Sequence[Tensor], norm: Callable[[], Tensor]) -> Tensor:
        """End the step; collective.

        Args:
            losses: of this rank's micro-batches.
            norm: clips the gradients, once the scale is out of them.

        Returns:
            A number that is not finite where the step is not, whatever the scale.
        """
        before = self.scaler.factor
        verdict = self.scaler.unscale_(self._optimizer, losses)
        self.scaler.update()
        if verdict is Verdict.FINITE:
            found = norm()
            if self._finite is None:
                self._optimizer.step()
            else:
                self._finite.apply(found)
            return found
        if verdict is Verdict.OVERFLOW and before > SMALLEST:
            self._say(before)
            return torch.zeros((), device=losses[0].device)
        bad = torch.full((), torch.nan, device=losses[0].device)
        if self._finite is not None:
            self._finite.apply(bad)
        return bad

    def _say(self, before: float) -> None:
        if self._is_main:
            logger.info(
                "gradients overflowed in fp16: update left out, loss scale %g -> %g (%d left out so far)",
                before,
                self.scaler.factor,
                self.scaler.skipped,
            )
