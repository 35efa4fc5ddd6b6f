"""The record of a step: seconds of data and of compute, memory, and the rank that holds the others up."""

from __future__ import annotations

import json
import mmap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from dist_train.distributed.control_group import Control, Deferred
from dist_train.distributed.run import Run
from dist_train.env import RankInfo
from dist_train.observability.sink_fanout import SinkFanout
from dist_train.trainer.records.memory_use import used_bytes
from dist_train.trainer.records.metric_records import MOST_RANK_LOSSES, Reporter, losses_of_ranks, of_ranks
from dist_train.trainer.records.metric_sums import MetricSums, Reducer
from dist_train.trainer.records.step_records import Records
from dist_train.trainer.records.straggler import OwnWork
from dist_train.trainer.records.throughput import Pace
from dist_train.trainer.task import LossOutput
from dist_train.trainer.training_position import Horizon

HORIZON = Horizon(samples=100, batch_size=10, total_steps=20)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Kept:
    def __init__(self) -> None:
        self.records: list[Any] = []

    def record(self, record: Any) -> None:
        self.records.append(record)

    def flush(self) -> None: ...

    def close(self) -> None: ...


class Slow(nn.Module):
    """A forward pass that takes two seconds of the test's clock."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 2.0
        return x


def test_a_record_splits_the_step_into_data_and_compute_and_estimates_what_is_left() -> None:
    clock, kept = Clock(), Kept()
    pace, model = Pace(clock), Slow(clock)
    run = Run(RankInfo.from_env({}), torch.device("cpu"))
    own = OwnWork(model, clock)
    records = Records(run, Reporter(HORIZON), Reducer(Control()), SinkFanout({"kept": kept}), pace, own)

    def late(data_s: float) -> Any:
        for item in (1, 2):
            clock.now += data_s
            yield item

    for data_s in (1.0, 3.0):
        for _ in pace.waiting(late(data_s)):
            model(torch.ones(1))
            pace.count(10)
        with pace.paused():
            model.eval()(torch.ones(1))
            model.train()
        metric_sums = MetricSums()
        metric_sums.add(LossOutput(torch.tensor(4.0), {}), 8, counts=True)
        records.train(step := 2 if data_s == 1.0 else 4, metric_sums, 0.1)
        assert len(kept.records) == step // 2 - 1, "written when the sums have come, not before"
        records.settle()
        records.settle()
    first, second = kept.records
    assert (first["step_s"], first["data_s"], first["compute_s"], first["data_wait"]) == (
        3.0,
        1.0,
        2.0,
        1 / 3,
    )
    assert (second["step_s"], second["data_s"], second["compute_s"]) == (5.0, 3.0, 2.0)
    assert (second["step_s_mean"], second["data_s_mean"], second["compute_s_mean"]) == (4.0, 2.0, 2.0)
    assert first["eta_s"] is None
    assert second["eta_s"] == 16 * 12.0 / 2, "evaluations are part of what is left"
    assert (second["total_steps"], second["epochs"], second["loss"]) == (20, 2, 0.5)
    assert second["memory_bytes"] > 10 * 2**20
    assert "slowest_rank" not in second, "one rank waits for nobody"
    assert json.loads(json.dumps(second)) == second


def test_own_work_is_the_forward_passes_of_training_alone() -> None:
    clock = Clock()
    model = Slow(clock)
    own = OwnWork(model, clock)
    model(torch.ones(1)), model(torch.ones(1))
    model.eval()(torch.ones(1))
    assert (own.take(), own.take()) == (4.0, 0.0)


def test_the_rank_with_most_memory_and_the_slowest_one() -> None:
    found = of_ranks([(0.1, 300.0), (0.5, 100.0), (0.3, 200.0)])
    assert (found["memory_bytes"], found["memory_rank"]) == (300, 0)
    assert (found["slowest_rank"], found["slowest_s"], found["others_s"]) == (1, 0.5, pytest.approx(0.2))
    assert of_ranks([]) == {}


def test_each_ranks_own_loss_is_recorded_unless_they_are_many() -> None:
    ranks = [(0.1, 300.0, 70.25), (0.5, 100.0, float("inf"))]
    assert losses_of_ranks(ranks) == {"rank_losses": [70.25, float("inf")]}
    assert of_ranks(ranks)["memory_rank"] == 0
    assert losses_of_ranks(ranks[:1]) == {}, "it is the loss"
    assert losses_of_ranks([(0.1, 1.0, 1.0)] * (MOST_RANK_LOSSES + 1)) == {}


def test_memory_of_this_process_is_resident_memory() -> None:
    # Not by malloc: it may take what it has free already, and keep it.
    with mmap.mmap(-1, 64 * 2**20) as held:
        for page in range(0, len(held), mmap.PAGESIZE):
            held[page] = 1
        with_it = used_bytes(torch.device("cpu"))
    assert with_it - used_bytes(torch.device("cpu")) > 50 * 2**20


def _gathers(meeting: str) -> list[Any]:
    import dist_train as dt

    with dt.init(device="cpu", init_method=meeting, timeout_s=30) as run:
        reducer = Reducer(run.control)
        gathered = []
        for step in range(2):
            metric_sums = MetricSums()
            metric_sums.add(
                LossOutput(torch.tensor(float(run.rank)), {"hits": (run.rank, 10)}), 1, counts=True
            )
            means = reducer.begin(metric_sums, (run.rank + 0.5, 100.0 * step))
            run.control.max_int(1)  # other collectives may come before the sums are asked for
            while not means.is_ready():
                time.sleep(0.001)
            found = means.get()
            gathered.append([found.loss, found.metrics, found.of_ranks])
        return gathered


def test_numbers_of_each_rank_are_gathered_with_the_sums(ranks: Any) -> None:
    own = [[0.5, 1.5, 2.5], [0.0, 100.0]]
    wanted = [[1.0, {"hits": 0.1}, [[seconds, memory] for seconds in own[0]]] for memory in own[1]]
    assert json.loads(json.dumps(ranks(3, _gathers))) == [wanted] * 3


def test_records_up_to_a_checkpoint_are_written_before_it(tmp_path: Path) -> None:
    """Killed in the midst of a save, with a record begun at the same step and an evaluation after it."""
    from test_trainer import config, start

    from dist_train.rundir import RunDir
    from dist_train.rundir.metrics_file import last_metrics
    from dist_train.trainer.checkpointing import Saves

    seen: list[list[tuple[str, int]]] = []
    save = Saves.save

    def noting(self: Saves, step: int, *rest: Any, **options: Any) -> None:
        seen.append([(one["kind"], one["step"]) for one in last_metrics(RunDir(tmp_path / "run").metrics)])
        save(self, step, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Saves, "save", noting)
        short = config("trainer={steps: 12, log_every_steps: 6}", "checkpoint={every_steps: 6}")
        start(tmp_path / "run", short)
    assert seen[0] == [("train", 6)]
    assert seen[1] == [("train", 6), ("train", 12), ("eval", 12)]


def test_a_training_that_fails_has_a_record_of_every_step_done(tmp_path: Path) -> None:
    """The last figures before the error are what one looks for."""
    from test_trainer import config, start

    from dist_train.rundir import RunDir
    from dist_train.rundir.metrics_file import last_metrics
    from dist_train.trainer.step import Stepper

    run, done = Stepper.run, 0

    def failing(self: Stepper, *words: Any) -> Any:
        nonlocal done
        if done == 3:
            raise FloatingPointError("loss is nan")
        done += 1
        return run(self, *words)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "run", failing)
        with pytest.raises(FloatingPointError):
            start(tmp_path / "run", config("trainer={steps: 12, log_every_steps: 1}"))
    assert [one["step"] for one in last_metrics(RunDir(tmp_path / "run").metrics)] == [1, 2, 3]


def test_sums_that_have_not_come_are_not_waited_for(tmp_path: Path) -> None:
    kept, clock = Kept(), Clock()
    never: Deferred[list[float]] = Deferred(lambda: pytest.fail("it waited"), lambda: False)
    control = Control()
    control.sum_later = lambda values: never  # type: ignore[method-assign]
    run = Run(RankInfo.from_env({}), torch.device("cpu"))
    own = OwnWork(nn.Identity(), clock)
    records = Records(run, Reporter(HORIZON), Reducer(control), SinkFanout({"kept": kept}), Pace(clock), own)
    metric_sums = MetricSums()
    metric_sums.add(LossOutput(torch.tensor(4.0), {}), 8, counts=True)
    records.train(1, metric_sums, 0.1)
    records.salvage()
    assert kept.records == []


MODULE = """
import os, time
import torch

class Late(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        time.sleep(0.06 if os.environ["RANK"] == "1" else 0.0)
        return torch.ones(4), torch.zeros((), dtype=torch.long)
"""
LATE = """
model: {target: "torch.nn:Linear", args: {in_features: 4, out_features: 2}}
data: {train: "late_data:Late", batch_size: 12}
loss: cross_entropy
optimizer: sgd
trainer: {epochs: 1, log_every_steps: 2}
"""


def _trains(meeting: str, folder: str) -> None:
    import sys

    import dist_train as dt
    from dist_train.config.load import load_text
    from dist_train.rundir import RunDir
    from dist_train.trainer.run_training import train

    sys.path.insert(0, folder)
    with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=30) as run:
        train(load_text(LATE, "late.yaml", ()).config, run, RunDir(Path(folder)))


def test_a_rank_whose_data_come_late_is_named(ranks: Any, tmp_path: Path) -> None:
    from dist_train.rundir.metrics_file import last_metrics

    (tmp_path / "late_data.py").write_text(MODULE)
    ranks(3, _trains, str(tmp_path))
    records = last_metrics(tmp_path / "metrics.jsonl")
    assert [(one["step"], one["slowest_rank"]) for one in records] == [(2, 1), (4, 1)]
    for one in records:
        # Four samples of 60 ms. All ranks take as long as it does: the step itself names nobody.
        assert one["slowest_s"] > 0.24
        assert one["slowest_s"] > one["others_s"]
        assert one["step_s"] > 0.24
