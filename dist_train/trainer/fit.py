"""The order of things in time: step, evaluation, records, save, stop; again until the end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

from dist_train.config.schema import TrainerConfig
from dist_train.data.exact import ExactLoader
from dist_train.data.shares import Share
from dist_train.distributed.run import Run
from dist_train.errors import Preempted
from dist_train.observability.sinks import Sinks
from dist_train.resilience.faults import FaultPlan
from dist_train.trainer.announce import resume_line
from dist_train.trainer.evaluate import evaluate
from dist_train.trainer.pace import Pace
from dist_train.trainer.position import Extent, Position
from dist_train.trainer.progress import mark, mark_alive
from dist_train.trainer.records import Records
from dist_train.trainer.saves import Saves
from dist_train.trainer.step import Stepper
from dist_train.trainer.tally import Means, Tally


@dataclass(frozen=True)
class Trainer:
    """Everything that one training needs, wired; `fit` runs it.

    Args:
        evaluation: the loader of the evaluation's data set, None without one.
    """

    run: Run
    config: TrainerConfig
    extent: Extent
    loader: ExactLoader
    evaluation: ExactLoader | None
    stepper: Stepper
    records: Records
    saves: Saves
    faults: FaultPlan
    sinks: Sinks
    pace: Pace

    def fit(self) -> Position:
        """Train from the newest checkpoint (or the start) to the end; returns the position there.

        Raises:
            Preempted: a stop was agreed; what is saved is said in the error.
        """
        step = self._restore()
        try:
            while step < self.extent.total_steps:
                step = self._epoch(step)
        finally:
            self.records.salvage()
        return self.extent.at(step)

    def _epoch(self, step: int) -> int:
        """To the end of the loader's epoch or of the training; returns the steps that are done."""
        with closing(steps_of(self.loader)) as steps:
            for shares in self.pace.waiting(steps):
                step += 1
                self.step(step, shares)
                if step == self.extent.total_steps:
                    break
        return step

    def _restore(self) -> int:
        with self.pace.paused():
            at = self.saves.restore()
        if at is None:
            return 0
        if self.run.is_main:
            print(resume_line(at), flush=True)
        return at.step

    def step(self, step: int, shares: list[Share]) -> None:
        """Optimizer step number `step` (1, 2, …) over this rank's micro-batches, and all that follows it."""
        learning_rate = self.stepper.learning_rate
        tally = Tally() if self._logs(step) else None
        self.stepper.run(shares, tally)
        mark(self.run, step)
        self.faults.at_step(step)
        self.pace.count(shares[0].step_count)
        self.records.settle()
        if tally is not None:
            self.records.train(step, tally, learning_rate)
        means = self._evaluate(step, learning_rate) if self._evaluates(step) else None
        if self.run.should_stop() and step < self.extent.total_steps:
            self._stop(step, means)
        if self.saves.due(step):
            self._save(step, means)

    def _save(self, step: int, means: Means | None) -> None:
        # The records of this step come before its checkpoint: a kill in between replays them.
        self.records.settle()
        self.sinks.flush()
        mark_alive(self.run, f"the save of step {step}")
        with self.pace.paused():
            self.saves.save(step, means)

    def _stop(self, step: int, means: Means | None) -> None:
        self.records.settle()
        if not self.saves.fits_the_grace():
            kept = "none" if self.saves.newest is None else f"step {self.saves.newest.step}"
            raise Preempted(
                f"stopped at step {step} as asked; a save was not possible, last good checkpoint: {kept}",
                cause="1.5 times the last save's duration is longer than the grace",
                mend="run it again to go on from there; a longer grace lets it save",
            )
        self._save(step, means)
        raise Preempted(
            f"stopped at step {step} as asked, and saved", mend="run it again to go on from there"
        )

    def _evaluate(self, step: int, learning_rate: float) -> Means:
        assert self.evaluation is not None
        self.records.settle()
        with self.pace.paused():
            means = evaluate(
                self.stepper.forward,
                self.evaluation,
                self.run.control,
                lambda: mark_alive(self.run, f"the evaluation after step {step}"),
            )
        self.records.evaluation(step, means, learning_rate)
        return means

    def _logs(self, step: int) -> bool:
        return step % self.config.log_every_steps == 0 or step == self.extent.total_steps

    def _evaluates(self, step: int) -> bool:
        if self.evaluation is None:
            return False
        if step == self.extent.total_steps:
            return True
        every = self.config.evaluate_every_epochs
        return (
            every is not None
            and self.extent.ends_epoch(step)
            and (self.extent.epoch_of(step) + 1) % every == 0
        )


def steps_of(loader: ExactLoader) -> Generator[list[Share], None, None]:
    """This rank's micro-batches of each optimizer step, to the end of the epoch."""
    with closing(loader.shares()) as shares:  # type: ignore[type-var]
        step: list[Share] = []
        for share in shares:
            step.append(share)
            if share.micro == share.micros - 1:
                yield step
                step = []
