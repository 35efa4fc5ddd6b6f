"""The training loop: step, records, callbacks, evaluation, stop, save; until the end."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from dist_train.config.schema import TrainerConfig
from dist_train.data.batch_partition import MicroBatch
from dist_train.data.loader import AnyLoader
from dist_train.distributed.run import Run
from dist_train.errors import Preempted
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.resilience.fault_injection import FaultPlan
from dist_train.rundir.times.span_clock import EVALUATION, STOPPING, span_clock
from dist_train.trainer.callback_hooks import CallbackHooks
from dist_train.trainer.checkpointing import Saves
from dist_train.trainer.console_messages import early_end_line, resume_line
from dist_train.trainer.evaluate import evaluate
from dist_train.trainer.non_finite import NonFiniteRule, RollBack
from dist_train.trainer.records.metric_sums import Means, MetricSums
from dist_train.trainer.records.step_records import Records
from dist_train.trainer.records.throughput import Pace
from dist_train.trainer.step import Stepper
from dist_train.trainer.training_position import Horizon, Position


@dataclass(frozen=True)
class Trainer:
    """Everything that one training needs, made by `build`; `fit` runs it.

    Args:
        evaluation: the loader of the evaluation's data set, None without one.
        callbacks: called at fixed points of the loop, in the order of their list.
    """

    run: Run
    config: TrainerConfig
    horizon: Horizon
    loader: AnyLoader
    evaluation: AnyLoader | None
    stepper: Stepper
    finite: NonFiniteRule
    records: Records
    saves: Saves
    callbacks: CallbackHooks
    faults: FaultPlan
    sinks: SinkFanout
    pace: Pace

    def fit(self) -> Position:
        """Train from the newest checkpoint (or the start) to the end; returns the position there.

        Raises:
            Preempted: a stop was agreed; the error names the step that is saved.
            NonFiniteError: a loss or gradient is not finite; the error names the last finite checkpoint.
        """
        step = self._restore() or 0
        try:
            self.callbacks.call("on_start", step)
            while not self._is_over(step):
                step = self._epoch(step)
            span_clock().switch(STOPPING)
            self.callbacks.call("on_end", step)
        finally:
            self.records.salvage()
        return self.horizon.at(step)

    def _epoch(self, step: int) -> int:
        """Train to the end of the loader's epoch or of the training; returns the steps done."""
        try:
            with closing(steps_of(self.loader)) as steps:
                for micro_batches in self.pace.waiting(steps):
                    step += 1
                    # The first micro-batch of a step is read with the step.
                    self.step(step, self.pace.waiting(micro_batches, self.config.accumulate > 1))
                    if self._is_over(step):
                        break
        except RollBack as rollback:
            self.records.settle()
            self.callbacks.stop = None  # asked for after the checkpoint; the restore brings one from before
            restored = self._restore()
            if restored is None:
                raise self.finite.nothing_to_go_back_to(rollback) from None
            return restored
        return step

    def _is_over(self, step: int) -> bool:
        return step >= self.horizon.total_steps or self.callbacks.stop is not None

    def _restore(self) -> int | None:
        """The step of the newest checkpoint, loaded; None without one, and nothing is changed."""
        with self.pace.paused():
            at = self.saves.restore()
        if at is None:
            return None
        self.finite.check_restored(at.step)
        if self.run.is_main:
            print(resume_line(at), flush=True)
        return at.step

    def step(self, step: int, micro_batches: Iterable[MicroBatch]) -> None:
        """Run optimizer step `step` (1, 2, …) over this rank's micro-batches, and all that follows it."""
        learning_rate = self.stepper.learning_rate
        leaves_out = self.finite.leaves_out(step)
        metric_sums = MetricSums() if self._logs(step) and not leaves_out else None
        if leaves_out:
            numbers = self.stepper.leave_out(micro_batches)
        else:
            numbers = self.stepper.run(micro_batches, metric_sums)
        self.run.progress(f"step {step}", step)
        self.faults.at_step(step)
        self.pace.count(self.horizon.samples_of(step))
        self.records.settle()
        if metric_sums is not None:
            scale, gradients = self.stepper.loss_scale, float(numbers.norm)
            self.records.train(step, metric_sums, learning_rate, scale, gradients)
        self.finite.see(step, numbers)
        self.callbacks.call("on_step_end", step)
        if self._evaluates(step):
            self.finite.settle(step)
        means = self._evaluate(step, learning_rate) if self._evaluates(step) else None
        stopping = self.run.should_stop() and step < self.horizon.total_steps
        due = stopping or self.saves.due(step)
        # Where the figures are shared anyway; and before a save, which would not hold a pending request.
        if (due or means is not None or metric_sums is not None) and self._ends_early(step):
            self._end_early(step, means, learning_rate)
        elif stopping:
            self._stop(step, means)
        elif due:
            self._save(step, means, wait=step == self.horizon.total_steps)
        elif metric_sums is not None:
            self.saves.poll()
        self._tell_committed(step)

    def _save(self, step: int, means: Means | None, *, wait: bool = True) -> None:
        # The records of this step come before its checkpoint: a kill in between replays them.
        self.records.settle()
        self.finite.settle(step)
        self.sinks.flush()
        self.run.progress(f"the save of step {step}")
        with self.pace.paused():
            self.saves.save(step, means, wait=wait)
        self._tell_committed(step)

    def _tell_committed(self, step: int) -> None:
        for committed in self.saves.take_committed():
            with self.pace.paused():
                self.callbacks.call("on_checkpoint", step, committed)

    def _ends_early(self, step: int) -> bool:
        return step < self.horizon.total_steps and self.callbacks.agree_to_stop()

    def _end_early(self, step: int, means: Means | None, learning_rate: float) -> None:
        """End the training here as at its last step: evaluated and saved."""
        if means is None and self.evaluation is not None:
            means = self._evaluate(step, learning_rate)
        self._save(step, means)
        if self.run.is_main and self.callbacks.stop is not None:
            print(early_end_line(step, str(self.callbacks.stop)), flush=True)

    def _stop(self, step: int, means: Means | None) -> None:
        self.records.settle()
        self.callbacks.call("on_stop", step)
        with self.pace.paused():
            waited_s = self.saves.finish()
        self._tell_committed(step)
        if not self.saves.fits_the_grace(waited_s):
            newest = "none" if self.saves.newest is None else f"step {self.saves.newest.step}"
            raise Preempted(
                f"stopped at step {step} as asked; a save was not possible, last good checkpoint: {newest}",
                cause="1.5 times the last save's duration is longer than the grace",
                hint="run it again to go on from there; a longer grace lets it save",
            )
        self._save(step, means)
        raise Preempted(
            f"stopped at step {step} as asked, and saved", hint="run it again to go on from there"
        )

    def _evaluate(self, step: int, learning_rate: float) -> Means:
        assert self.evaluation is not None
        self.records.settle()
        with span_clock().whole(EVALUATION):
            with self.pace.paused():
                self.callbacks.call("on_evaluation_start", step)
                means = evaluate(
                    self.stepper.forward,
                    self.evaluation,
                    self.run.control,
                    lambda: self.run.progress(f"the evaluation after step {step}"),
                    self.run.place.counts,
                )
            self.records.evaluation(step, means, learning_rate)
            self.stepper.evaluated(means.figures)
            with self.pace.paused():
                self.callbacks.call("on_evaluation_end", step, means.figures)
        return means

    def _logs(self, step: int) -> bool:
        return step % self.config.log_every_steps == 0 or step == self.horizon.total_steps

    def _evaluates(self, step: int) -> bool:
        if self.evaluation is None:
            return False
        if step == self.horizon.total_steps:
            return True
        every = self.config.evaluate_every_epochs
        return (
            every is not None
            and self.horizon.ends_epoch(step)
            and (self.horizon.epoch_of(step) + 1) % every == 0
        )


def steps_of(loader: AnyLoader) -> Generator[Iterable[MicroBatch], None, None]:
    """This rank's micro-batches of each optimizer step, to the end of the epoch.

    Each step must be read to its end. Its micro-batches are read one by one: on a GPU only the one in use and
    the next need memory.
    """
    with closing(loader.micro_batches()) as micro_batches:  # type: ignore[type-var]
        for first in micro_batches:
            rest, box = islice(micro_batches, first.micros - 1), [first]
            del first
            yield _each(box, rest)


def _each(first: list[MicroBatch], rest: Iterable[MicroBatch]) -> Generator[MicroBatch, None, None]:
    yield first.pop()  # no reference to it stays here
    yield from rest
