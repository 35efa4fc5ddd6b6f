"""From the sums of a step to its record: begun at the step, sent to the sinks at the next one.

Adding up over ranks takes some milliseconds of waiting for each other; the next step is done meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dist_train.distributed.control_group import Deferred
from dist_train.distributed.run import Run
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.trainer.records.memory_use import used_bytes
from dist_train.trainer.records.metric_records import RankInterval, Reporter
from dist_train.trainer.records.metric_sums import Means, MetricSums, Reducer
from dist_train.trainer.records.straggler import OwnWork
from dist_train.trainer.records.throughput import Pace


class Records:
    """The records of a training: rank 0 writes them, every rank takes part in the sums.

    Attributes:
        newest: loss and metrics of the newest finished training record, equal on all ranks.
    """

    def __init__(
        self, run: Run, reporter: Reporter, reducer: Reducer, sinks: SinkFanout, pace: Pace, own_work: OwnWork
    ) -> None:
        self._run = run
        self._reporter = reporter
        self._reducer = reducer
        self._sinks = sinks
        self._pace = pace
        self._own_work = own_work
        self._pending: Deferred[Mapping[str, Any]] | None = None
        self.newest: Mapping[str, float] = {}

    def train(
        self,
        step: int,
        metric_sums: MetricSums,
        learning_rate: float,
        loss_scale: tuple[float, int] | None = None,
        gradient_number: float | None = None,
    ) -> None:
        """Begin the record of this step; `settle` ends it. Collective."""
        interval = self._interval()
        coming = self._reducer.begin(metric_sums, (*interval.of_rank, metric_sums.loss))
        self._pending = coming.then(
            lambda means: self._reporter.train(
                step, means, learning_rate, interval, loss_scale, gradient_number
            )
        )

    def settle(self) -> None:
        """Write the record that was begun; waits for all ranks. Called before what may end the run."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            record = pending.get()
            self.newest = {"loss": record["loss"], **record["metrics"]}
            self._write(record)

    def salvage(self) -> None:
        """Write it if its sums are there: training ends with an error, and other ranks may be dead."""
        if self._pending is not None and self._pending.is_ready():
            with suppress(Exception):  # the sums' own failure is not what ended the training
                self.settle()

    def evaluation(self, step: int, means: Means, learning_rate: float) -> None:
        """Write the record of an evaluation."""
        self._write(self._reporter.evaluation(step, means, learning_rate))

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._run.is_main:
            self._sinks.record(record)

    def _interval(self) -> RankInterval:
        recent = self._pace.next_interval()
        forward_s = self._own_work.take() / max(1, recent.steps)
        memory = used_bytes(self._run.device)
        return RankInterval(recent, self._pace.whole, recent.data_s + forward_s, memory, self._pace.wall_s)
