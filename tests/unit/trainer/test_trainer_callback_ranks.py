"""Callbacks on two ranks: collectives of all or of none, a request to stop that all agree on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from dist_train.testing import RanksFailed, run_ranks
from dist_train.trainer import Callback, CallbackContext
from dist_train.trainer.callback_rules import EVERY_CALLS, FIRST_CALLS, is_checked

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(180)]
CONFIG = """
model: test_trainer:slope
data: {train: {target: "test_trainer:Line", args: {samples: 16}}, batch_size: 4}
loss: mse
optimizer: {target: sgd, args: {lr: 0.1}}
trainer: {steps: 60, log_every_steps: 4}
checkpoint: {every_steps: 60}
resilience: {collective_timeout_s: 5.0}
"""
TIMEOUT_S = 5.0


class Reduces(Callback):
    """Runs an all-reduce at one step on some ranks."""

    def __init__(self, ranks: set[int], step: int) -> None:
        self._ranks, self._step = ranks, step
        self.total = 0.0

    def on_step_end(self, context: CallbackContext) -> None:
        if context.step == self._step and context.run.rank in self._ranks:
            box = torch.tensor([context.run.rank + 1.0])
            torch_dist.all_reduce(box)
            self.total = box.item()


class Asks(Callback):
    """Asks to stop on rank 1 alone."""

    def on_step_end(self, context: CallbackContext) -> None:
        if context.step == 5 and context.run.rank == 1:
            context.request_stop("rank 1 has seen enough")


def _train(folder: str, callback: Callback) -> Any:
    import dist_train as dt
    from dist_train.config.load import load_text
    from dist_train.rundir import RunDir
    from dist_train.trainer import train

    with dt.init(seed=0, device="cpu", timeout_s=30, collective_timeout_s=TIMEOUT_S) as run:
        result = train(load_text(CONFIG, "two.yaml").config, run, RunDir(Path(folder)), callbacks=[callback])
    total = getattr(callback, "total", None)
    return None if result is None else result.steps, total


def failures(folder: Path, callback: Callback, deadline_s: float) -> dict[int, str]:
    """Traceback of each rank that failed; all of them end within the deadline."""
    began = time.monotonic()
    with pytest.raises(RanksFailed) as caught:
        run_ranks(_train, 2, 60.0, args=(str(folder), callback), after_failure_s=15.0)
    assert time.monotonic() - began < deadline_s
    return caught.value.tracebacks


def test_a_collective_of_all_ranks_is_run(tmp_path: Path) -> None:
    found = run_ranks(_train, 2, 60.0, args=(str(tmp_path), Reduces({0, 1}, step=3)))
    assert found == [(60, 3.0), (None, 3.0)]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_collective_of_one_rank_is_refused_at_once_on_all(tmp_path: Path, rank: int) -> None:
    found = failures(tmp_path, Reduces({rank}, step=3), deadline_s=40.0)
    assert set(found) == {0, 1}
    for text in found.values():
        assert "ConfigError: a collective that not all ranks run" in text
        assert "a collective of the callback Reduces" in text


def test_one_at_an_unchecked_step_is_named_after_the_collective_time_out(tmp_path: Path) -> None:
    step = FIRST_CALLS + EVERY_CALLS // 2
    assert not is_checked(step - 1)
    found = failures(tmp_path, Reduces({0}, step=step), deadline_s=60.0)
    assert "allreduce of the callback Reduces in on_step_end on rank 0, not on rank 1" in found[0]


class Counts(Callback):
    """Keeps state that is not the same on all ranks."""

    def __init__(self) -> None:
        self._seen = 0

    def on_step_end(self, context: CallbackContext) -> None:
        self._seen += context.run.rank

    def state_dict(self) -> dict[str, Any]:
        return {"of": {"seen": self._seen}}


def test_state_that_ranks_keep_differently_names_the_callback(tmp_path: Path) -> None:
    found = failures(tmp_path, Counts(), deadline_s=60.0)
    assert "other state ('callbacks') than rank" in found[0]
    assert "first in the value 'states/Counts/of/seen'" in found[0]


def test_a_request_of_one_rank_is_agreed_by_all(tmp_path: Path) -> None:
    assert run_ranks(_train, 2, 60.0, args=(str(tmp_path), Asks()))[0] == (8, None)
