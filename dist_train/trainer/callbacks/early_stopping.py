"""End the training when a metric of the evaluation no longer improves.

    trainer:
      callbacks:
        - target: early_stopping
          args: {metric: accuracy, mode: max, patience: 5}

The run ends at that evaluation as at its last step: saved, with a result, status `done`.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from typing import Any

from dist_train.errors import ConfigError
from dist_train.trainer.callback import Callback, CallbackContext

logger = logging.getLogger(__name__)


class EarlyStopping(Callback):
    """Ask to stop after `patience` evaluations in a row without a better value.

    Args:
        metric: `loss`, or the name of a metric of the evaluation.
        mode: min where less is better, max where more is.
        patience: evaluations without improvement that end the training.
        min_delta: a smaller improvement counts as none.
    """

    def __init__(
        self, metric: str = "loss", mode: str | None = None, patience: int = 3, min_delta: float = 0.0
    ) -> None:
        if mode is None and metric == "loss":
            mode = "min"
        if mode not in ("min", "max"):
            raise ConfigError(
                f"EarlyStopping: mode={mode!r} for the metric {metric!r}",
                hint="mode: max where more is better, mode: min where less is",
            )
        numbers = isinstance(patience, int) and isinstance(min_delta, int | float)
        if not numbers or patience < 1 or not min_delta >= 0:
            raise ConfigError(
                f"EarlyStopping: patience={patience!r}, min_delta={min_delta!r}",
                hint="patience is a whole number of at least 1, min_delta a number of at least 0",
            )
        self._metric, self._sign = metric, 1.0 if mode == "max" else -1.0
        self._patience, self._min_delta = patience, min_delta
        self._best: float | None = None
        self._best_step = 0
        self._without = 0
        self._evaluations = 0

    def on_evaluation_end(self, context: CallbackContext, metrics: Mapping[str, float]) -> None:
        """Compare with the best value so far; a nan is no improvement."""
        if self._metric not in metrics:
            near = difflib.get_close_matches(self._metric, metrics, n=1)
            raise ConfigError(
                f"EarlyStopping: the evaluation has no metric {self._metric!r}, but {', '.join(metrics)}",
                hint=f"did you mean {near[0]!r}?" if near else None,
            )
        value = metrics[self._metric]
        self._evaluations += 1
        best = self._best
        if value == value and (best is None or self._sign * (value - best) > self._min_delta):
            self._best, self._best_step, self._without = value, context.step, 0
            return
        self._without += 1
        if self._without >= self._patience:
            shown = "none" if best is None else f"{best:.6g} at step {self._best_step}"
            context.request_stop(
                f"{self._metric} has not improved in {self._without} evaluations (best: {shown})"
            )

    def on_end(self, context: CallbackContext) -> None:
        """Warn where nothing was evaluated."""
        if not self._evaluations and context.run.is_main:
            logger.warning("EarlyStopping had nothing to compare: the config has no data.evaluation")

    def state_dict(self) -> dict[str, Any]:
        """The best value, its step, and the evaluations since."""
        return {
            "best": self._best,
            "best_step": self._best_step,
            "without": self._without,
            "evaluations": self._evaluations,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on counting."""
        self._best, self._best_step = state["best"], state["best_step"]
        self._without, self._evaluations = state["without"], state["evaluations"]


CALLBACK = EarlyStopping
