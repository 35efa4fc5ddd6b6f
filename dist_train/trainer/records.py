"""From the sums of a step to its record: begun at the step, told at the next one.

Adding up over ranks takes some milliseconds of waiting for each other; the next step is done meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dist_train.distributed.control import Coming
from dist_train.distributed.run import Run
from dist_train.observability.sinks import Sinks
from dist_train.trainer.memory import used_bytes
from dist_train.trainer.own_work import OwnWork
from dist_train.trainer.pace import Pace
from dist_train.trainer.report import Reporter, Stretch
from dist_train.trainer.tally import Means, Reducer, Tally


class Records:
    """What rank 0 tells of training; every rank takes part in the sums."""

    def __init__(
        self, run: Run, reporter: Reporter, reducer: Reducer, sinks: Sinks, pace: Pace, own_work: OwnWork
    ) -> None:
        self._run = run
        self._reporter = reporter
        self._reducer = reducer
        self._sinks = sinks
        self._pace = pace
        self._own_work = own_work
        self._pending: Coming[Mapping[str, Any]] | None = None

    def train(self, step: int, tally: Tally, learning_rate: float) -> None:
        """Begin the record of this step; `settle` ends it. Collective."""
        stretch = self._stretch()
        coming = self._reducer.begin(tally, stretch.of_rank)
        self._pending = coming.then(lambda means: self._reporter.train(step, means, learning_rate, stretch))

    def settle(self) -> None:
        """Tell the record that was begun, before whatever may end or outlive it; waits for all ranks."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._tell(pending.get())

    def salvage(self) -> None:
        """Tell it if its sums have come: training ends with an error, and others may be dead."""
        if self._pending is not None and self._pending.has_come():
            with suppress(Exception):  # the sums' own failure is not what ended the training
                self.settle()

    def evaluation(self, step: int, means: Means, learning_rate: float) -> None:
        """Tell the record of an evaluation."""
        self._tell(self._reporter.evaluation(step, means, learning_rate))

    def _tell(self, record: Mapping[str, Any]) -> None:
        if self._run.is_main:
            self._sinks.record(record)

    def _stretch(self) -> Stretch:
        lap = self._pace.lap()
        forward_s = self._own_work.take() / max(1, lap.steps)
        memory = used_bytes(self._run.device)
        return Stretch(lap, self._pace.whole, lap.data_s + forward_s, memory, self._pace.wall_s)
