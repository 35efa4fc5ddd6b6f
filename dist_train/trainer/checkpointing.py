"""When to save, what to save, and the restore from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.save_results import Committed
from dist_train.config.schema import CheckpointConfig
from dist_train.data.loader import AnyLoader
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointError, ConfigError
from dist_train.resilience.fault_injection import FaultPlan
from dist_train.trainer.records.metric_sums import Means
from dist_train.trainer.records.remote_record import RemoteRecord
from dist_train.trainer.training_position import Horizon, Position

logger = logging.getLogger(__name__)

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
        asynchronous: saves are written while the training goes on, but for those that are asked to wait.
        remote: takes note of the checkpoints that there are.
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
        asynchronous: bool = False,
        remote: RemoteRecord | None = None,
    ) -> None:
        self._manager = manager
        self._config = config
        self._horizon = horizon
        self._loader = loader
        self._state = dict(state)
        self._control = control
        self._grace_s = grace_s
        self._faults = faults
        self._asynchronous = asynchronous
        self._remote = remote
        self._last_seconds = 0.0
        self._untold: list[int] = []
        self.newest: Saved | None = None

    def restore(self) -> Position | None:
        """Load the newest good checkpoint, RNG state last; None to begin at step 0. Collective.

        Raises:
            CheckpointError: it was made with another batch size or data set, so that its step is
                not where this config would be.
        """
        self.finish()
        restored = self._manager.load_latest(self._state)
        self._note_remote()
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

    def save(self, step: int, evaluation: Means | None, *, wait: bool) -> None:
        """Save the state after this step; the save before it is committed first. Collective.

        Args:
            wait: until it is committed, also where saves are asynchronous.
        """
        self.finish()
        self._faults.at_save(step)
        at = self._horizon.at(step)
        facts: dict[str, Any] = {
            "data": self._loader.state_dict(),
            "epoch": at.epoch,
            "samples_in_epoch": at.samples_in_epoch,
            "samples_total": at.samples_total,
            "score": None if evaluation is None else self._score(evaluation),
        }
        if wait or not self._asynchronous:
            self._note(self._manager.save(step, self._state, **facts))
        else:
            self._manager.start_save(step, self._state, **facts)

    def poll(self) -> None:
        """Take note of a save that has ended on all ranks. Collective.

        Raises:
            CheckpointWriteError: it has failed.
        """
        self._note_background(self._manager.poll())

    def finish(self) -> float:
        """Wait until nothing is being written any more; return the seconds that it took. Collective.

        Raises:
            CheckpointWriteError: the save has failed.
        """
        began = time.perf_counter()
        self._note_background(self._manager.wait())
        return time.perf_counter() - began

    def newest_step(self) -> int | None:
        """The step of the newest checkpoint, once nothing is being written. Collective."""
        self.finish()
        return None if self.newest is None else self.newest.step

    def take_committed(self) -> list[int]:
        """Return the steps that were committed since the last call; the same on all ranks."""
        steps, self._untold = self._untold, []
        return steps

    def _note(self, committed: Committed) -> None:
        self._untold.append(committed.step)
        self._last_seconds = committed.seconds
        self.newest = Saved(committed.step, committed.weights_hash, committed.state_hash)
        self._note_remote()

    def _note_remote(self) -> None:
        if self._remote is not None and self._control.is_main:
            self._remote.note()

    def _note_background(self, committed: Committed | None) -> None:
        if committed is None:
            return
        self._note(committed)
        if self._control.is_main:
            logger.info(
                "step %d is saved: the training stood still for %.3f s, after %.2f s it was written",
                committed.step,
                committed.stall_seconds,
                committed.seconds,
            )

    def fits_the_grace(self, waited_s: float = 0.0) -> bool:
        """Whether a save can end before the kill, judged by the slowest rank's last one. Collective.

        Args:
            waited_s: of the grace, what is gone.
        """
        needed_ms = self._control.max_int(int(1000 * (self._last_seconds * _MARGIN + waited_s)))
        return needed_ms / 1000 <= self._grace_s

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
