"""When to save, what to save, and the restore from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.config.schema import CheckpointConfig
from dist_train.data.loader import AnyLoader
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointError, ConfigError
from dist_train.resilience.fault_injection import FaultPlan
from dist_train.trainer.records.metric_sums import Means
from dist_train.trainer.training_position import Horizon, Position

# The next save may be slower than the last: the grace must hold this many of it.
_MARGIN = 1.5


@dataclass(frozen=True)
class Saved:
    """The newest good checkpoint of this run."""

    step: int
    weights_hash: str
    state_hash: str


class Saves:
    """Saves at the boundaries of optimizer steps.

    Args:
        manager: writes and reads.
        state: what a checkpoint holds, by name; `loader` is the position.
        grace_s: seconds from a stop signal to the kill.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        config: CheckpointConfig,
        horizon: Horizon,
        loader: AnyLoader,
        state: Mapping[str, Any],
        control: Control,
        grace_s: float,
        faults: FaultPlan,
    ) -> None:
        self._manager = manager
        self._config = config
        self._horizon = horizon
        self._loader = loader
        self._state = dict(state)
        self._control = control
        self._grace_s = grace_s
        self._faults = faults
        self._last_seconds = 0.0
        self.newest: Saved | None = None

    def restore(self) -> Position | None:
        """Load the newest good checkpoint, RNG state last; None to begin at step 0. Collective.

        Raises:
            CheckpointError: it was made with another batch size or data set, so that its step is
                not where this config would be.
        """
        restored = self._manager.load_latest(self._state)
        if restored is None:
            return None
        at = self._horizon.at(restored.step)
        found = (restored.epoch, restored.samples_in_epoch)
        if found != (at.epoch, at.samples_in_epoch):
            raise CheckpointError(
                f"step {restored.step} was saved at epoch {found[0]}, sample {found[1]}; with this config "
                f"it is epoch {at.epoch}, sample {at.samples_in_epoch}",
                cause="data.batch_size has changed",
                hint="go on with the batch_size of the checkpoint, or begin a new run",
            )
        if at.samples_in_epoch == 0:
            # Nothing of the trainer's follows an epoch's last step and its save: the next epoch begins.
            self._loader.seek(at.epoch, 0)
        self.newest = Saved(restored.step, restored.weights_hash, restored.state_hash)
        return at

    def due(self, step: int) -> bool:
        """Whether the config wants a save after this step; always after the last."""
        every_steps, every_epochs = self._config.every_steps, self._config.every_epochs
        if step == self._horizon.total_steps:
            return True
        if every_steps is not None:
            return step % every_steps == 0
        epochs_done = self._horizon.epoch_of(step) + 1
        return every_epochs is not None and self._horizon.ends_epoch(step) and epochs_done % every_epochs == 0

    def save(self, step: int, evaluation: Means | None) -> None:
        """Commit the state after this step. Collective."""
        self._faults.at_save(step)
        at = self._horizon.at(step)
        committed = self._manager.save(
            step,
            self._state,
            data=self._loader.state_dict(),
            epoch=at.epoch,
            samples_in_epoch=at.samples_in_epoch,
            samples_total=at.samples_total,
            score=None if evaluation is None else self._score(evaluation),
        )
        self._last_seconds = committed.seconds
        self.newest = Saved(step, committed.weights_hash, committed.state_hash)

    def fits_the_grace(self) -> bool:
        """Whether a save can end before the kill, judged by the slowest rank's last one. Collective."""
        slowest_ms = self._control.max_int(int(1000 * self._last_seconds))
        return slowest_ms / 1000 * _MARGIN <= self._grace_s

    def _score(self, evaluation: Means) -> float | None:
        best = self._config.keep_best
        if best is None:
            return None
        figures = evaluation.figures
        if best.metric not in figures:
            raise ConfigError(
                f"checkpoint.keep_best.metric: no metric is called {best.metric!r}",
                hint=f"use one of {', '.join(sorted(figures))}",
            )
        return figures[best.metric]
