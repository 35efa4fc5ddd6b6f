"""What the trainer does where a loss or gradient is not finite: stop, skip the step, or roll back.

The ranks decide together (distributed/finite_check.py), some steps late, but before anything is evaluated or
saved: what a checkpoint holds is finite, so the newest one is the last finite one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from dist_train.data.loader import AnyLoader
from dist_train.distributed.finite_check import FiniteCheck, NonFinite
from dist_train.distributed.finite_numbers import weight_number
from dist_train.distributed.run import Run
from dist_train.errors import NonFiniteError
from dist_train.rundir.name_ranks import name_ranks
from dist_train.rundir.step_names import step_name
from dist_train.trainer.finite_update import StepNumbers
from dist_train.trainer.training_position import Horizon

logger = logging.getLogger(__name__)

Action = Literal["stop", "skip", "rollback"]
# More than these do not help: the training has diverged.
SKIPPED_IN_A_ROW = 16
ROLLBACKS_TO_A_CHECKPOINT = 8
_SAMPLES_SHOWN = 32


class RollBack(Exception):
    """Ends the current pass over the data on all ranks: the training goes on from the newest checkpoint.

    Args:
        what: the step, and what of it was not finite.
        newest: the step of the checkpoint that was the newest.
    """

    def __init__(self, what: str, newest: int) -> None:
        super().__init__(what)
        self.what = what
        self.newest = newest


class NonFiniteRule:
    """The action for each step that is not finite; every call is collective.

    Args:
        model: the wrapped model.
        newest_step: gives the step of the newest checkpoint, None without one.
        checkpoints: where the checkpoints are, for messages.
        run_dir: the run directory, for messages.
        data_rank_of: the data coordinate of a rank.
    """

    # The entry of a checkpoint: one from before, or of a run that does not roll back, has none.
    optional_in_checkpoint = True

    def __init__(
        self,
        run: Run,
        action: Action,
        model: nn.Module,
        loader: AnyLoader,
        horizon: Horizon,
        newest_step: Callable[[], int | None],
        checkpoints: str,
        run_dir: Path,
        data_rank_of: Callable[[int], int] = int,
    ) -> None:
        self._run = run
        self._action = action
        self._model = model
        self._loader = loader
        self._horizon = horizon
        self._newest_step = newest_step
        self._checkpoints, self._run_dir = checkpoints, run_dir
        self._data_rank_of = data_rank_of
        self._check = FiniteCheck(run.control)
        self._skipped: list[int] = []
        self._left_out: set[int] = set()
        self._rollbacks: Counter[int] = Counter()

    def leaves_out(self, step: int) -> bool:
        """Whether a rollback was made for this step, so that it is not trained again."""
        return step in self._left_out

    def see(self, step: int, numbers: StepNumbers) -> None:
        """Take a step's numbers; act on those of earlier ones.

        Raises:
            NonFiniteError: the run ends. RollBack: it goes on from the newest checkpoint.
        """
        found = self._check.add(step, numbers.losses, [numbers.norm])
        if found is not None:
            self._act(found)

    def settle(self, step: int) -> None:
        """Act on everything up to this step, and on weights that are not finite.

        Raises:
            NonFiniteError: the run ends. RollBack: it goes on from the newest checkpoint.
        """
        while (found := self._check.settle()) is not None:
            self._act(found)
        if not self._weights_are_finite():
            self._act_on_weights(step)

    def check_restored(self, step: int) -> None:
        """Raise NonFiniteError where the weights of the restored checkpoint are not finite."""
        if not self._weights_are_finite():
            raise NonFiniteError(
                f"the weights in {self._checkpoints}/{step_name(step)} are not finite",
                cause="it was saved after a loss or gradient that was not",
                hint="`dist-train checkpoint list` shows older ones; move the newer ones out of the way to "
                "resume from one of them",
            )

    def _weights_are_finite(self) -> bool:
        norm = weight_number(self._model.parameters())
        return not self._run.control.max_int(int(not torch.isfinite(norm)))

    def _act(self, found: NonFinite) -> None:
        first = found.steps[0]
        if self._action == "skip":
            for step in found.steps:
                self._skip(step, found.ranks if step == first else ())
        elif self._action == "rollback":
            self._roll_back(first, self._what(first, found.ranks))
        else:
            raise self._error(self._what(first, found.ranks), first)

    def _act_on_weights(self, step: int) -> None:
        what = f"step {step}: the weights are not finite, though every loss and gradient was"
        if self._action == "rollback":
            self._roll_back(step, what)
        raise self._error(what, step)

    def _skip(self, step: int, ranks: Collection[int]) -> None:
        what = self._what(step, ranks)
        if self._run.is_main:
            logger.warning("%s: its update was left out", what)
        self._skipped = [*self._skipped, step][-SKIPPED_IN_A_ROW:]
        if len(self._skipped) == SKIPPED_IN_A_ROW and step - self._skipped[0] == SKIPPED_IN_A_ROW - 1:
            raise self._error(what, step, f"so were the {SKIPPED_IN_A_ROW - 1} steps before it")

    def _roll_back(self, step: int, what: str) -> None:
        newest = self._newest_step()
        if newest is None:
            raise self._error(what, step, "there is no checkpoint yet to roll back to")
        self._rollbacks[newest] += 1
        if self._rollbacks[newest] > ROLLBACKS_TO_A_CHECKPOINT:
            times = f"{ROLLBACKS_TO_A_CHECKPOINT} rollbacks to step {newest} have not helped"
            raise self._error(what, step, times)
        self._left_out.add(step)
        self._check.forget()
        if self._run.is_main:
            logger.warning("%s: back to step %d, and on without step %d", what, newest, step)
        raise RollBack(what, newest)

    def nothing_to_go_back_to(self, rollback: RollBack) -> NonFiniteError:
        """The error where the checkpoint of a rollback is gone: the weights here are not finite, too."""
        return NonFiniteError(
            rollback.what,
            cause=f"{self._checkpoints} holds no checkpoint to roll back to, though step {rollback.newest} "
            "was saved there",
            hint="something removed it while the run went on (a clean-up job?): bring it back and resume, or "
            "begin a new run",
        )

    def _what(self, step: int, ranks: Collection[int]) -> str:
        epoch = self._horizon.epoch_of(step)
        inner = step - 1 - epoch * self._horizon.steps_per_epoch
        samples = self._loader.sample_ids(epoch, inner, {self._data_rank_of(rank) for rank in ranks})
        shown = ", ".join(map(str, samples[:_SAMPLES_SHOWN]))
        more = f" and {len(samples) - _SAMPLES_SHOWN} more" if len(samples) > _SAMPLES_SHOWN else ""
        where = f"the loss is not finite on {name_ranks(ranks)}" if ranks else "the gradients are not finite"
        return f"step {step}: {where} (samples {shown}{more})"

    def _error(self, what: str, step: int, cause: str | None = None) -> NonFiniteError:
        newest = self._newest_step()
        if newest is None:
            last = "there is no checkpoint yet"
        else:
            where = f"{self._checkpoints}/{step_name(newest)}"
            last = f"the last finite checkpoint is that of step {newest}, {where}"
        folder = self._run_dir
        advice = (
            "look at these samples, lower the learning rate or set trainer.clip_norm"
            if self._action != "stop"
            else f"set trainer.on_nonfinite: rollback (or skip) in {folder / 'config.yaml'}, then\n"
            f"         dist-train resume {folder} --accept-code-change"
        )
        return NonFiniteError(what, cause=cause, hint=f"{last}; {advice}")

    def state(self) -> dict[str, Any]:
        """What the checkpoint holds of it, by the state's keys; nothing unless it rolls back."""
        return {"non_finite": self} if self._action == "rollback" else {}

    def state_dict(self) -> dict[str, Any]:
        """The steps that were left out."""
        return {"left_out": sorted(self._left_out)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Those of the checkpoint, beside those that led back to it."""
        self._left_out |= {int(step) for step in state["left_out"]}
