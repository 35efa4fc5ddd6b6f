"""`checkpoint.async: true`: the same bits, saves beside the steps, stops, faults and rollbacks in between."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # an optimizer loads it, and it sets an environment variable: not inside a test
from nonfinite_cases import Line

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.config.dump import config_xxh3
from dist_train.config.load import load_text
from dist_train.config.schema import RunConfig
from dist_train.distributed.control_group import Control
from dist_train.distributed.run import Run
from dist_train.env import INJECT, RankInfo
from dist_train.errors import CheckpointWriteError, Preempted
from dist_train.resilience.fault_injection import InjectedFault
from dist_train.resilience.stop import StopFlag, StopVote
from dist_train.rundir.directory import RunDir
from dist_train.rundir.result import Result
from dist_train.trainer.callback import Callback, CallbackContext
from dist_train.trainer.run_training import train

LINE = """
model: nonfinite_cases:net
data: {train: {target: nonfinite_cases:Line, args: {bad: [1]}}, batch_size: 8}
loss: torch.nn.functional:mse_loss
optimizer: {target: torch.optim:SGD, args: {lr: 0.1, momentum: 0.9}}
trainer: {steps: 12, log_every_steps: 1, on_nonfinite: rollback}
checkpoint: {every_steps: 2, async: true}
"""


def config(*changes: str) -> RunConfig:
    assert len(Line()) == 40
    return load_text(LINE, "run.yaml", changes).config


class SavesSeen(Callback):
    """Writes down when it learns of which checkpoint."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def on_checkpoint(self, context: CallbackContext, step: int) -> None:
        self.calls.append((context.step, step))


def start(
    folder: Path,
    run_config: RunConfig,
    attempt: int = 0,
    vote: Callable[[], bool] | None = None,
    callbacks: tuple[Callback, ...] = (),
) -> Result:
    """One attempt of a run with one process, closed as its with statement closes it."""
    folder.mkdir(exist_ok=True)
    run = Run(
        RankInfo.from_env({}),
        torch.device("cpu"),
        seed=run_config.seed,
        directory=folder,
        run_id="test",
        attempt=attempt,
        vote=vote or StopVote(Control(), StopFlag(folder / "board"), every=1).agreed,
    )
    run.make_current()
    with run:
        result = train(run_config, run, RunDir(folder), callbacks=callbacks)
    assert result is not None
    return result


def hashes(result: Result) -> tuple[str, str, str]:
    return result.weights_hash, result.state_hash, result.metrics_hash


@pytest.fixture(scope="module")
def waits(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The run whose saves are waited for."""
    return start(tmp_path_factory.mktemp("waits"), config("checkpoint.async=false"))


def slow_threads(monkeypatch: pytest.MonkeyPatch, until: threading.Event) -> None:
    """Let no other thread make a directory before `until`."""
    real = os.mkdir

    def held(*args: Any, **kwargs: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            assert until.wait(20)
        real(*args, **kwargs)

    monkeypatch.setattr(os, "mkdir", held)


def test_the_bits_are_those_of_saves_that_are_waited_for(
    tmp_path: Path, waits: Result, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = SavesSeen()
    assert hashes(start(tmp_path / "run", config(), callbacks=(seen,))) != ()
    plain = start(tmp_path / "plain", config())
    assert hashes(plain) == hashes(waits)
    assert [step for _, step in seen.calls] == sorted({step for _, step in seen.calls})
    assert seen.calls[-1] == (12, 12)  # the last one is waited for
    assert all(at >= step for at, step in seen.calls)
    assert "step 10 is saved: the training stood still for" in caplog.text


def wait_for_threads() -> None:
    """Until no save is under way."""
    for thread in threading.enumerate():
        if thread.name == "dist-train-save":
            thread.join(20)


def test_a_save_goes_on_beside_the_steps_and_is_known_at_a_logged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: Result
) -> None:
    go, seen = threading.Event(), SavesSeen()

    class Releases(Callback):
        """The save of step 4 goes on at step 5 and is done before that step is logged."""

        def on_step_end(self, context: CallbackContext) -> None:
            if context.step == 4:
                wait_for_threads()
                slow_threads(monkeypatch, go)
            if context.step == 5:
                assert [step for _, step in seen.calls] == [2]
                go.set()
                wait_for_threads()

    start(tmp_path / "run", config("data.train.args={}"), callbacks=(seen, Releases()))
    assert (5, 4) in seen.calls


def test_a_stop_waits_for_the_save_that_is_under_way(tmp_path: Path, waits: Result) -> None:
    asked = iter([False, False, True])
    with pytest.raises(Preempted, match="stopped at step 3 as asked, and saved"):
        start(tmp_path / "run", config(), vote=lambda: next(asked))
    assert CheckpointManager(RunDir(tmp_path / "run").checkpoints).steps() == [2, 3]
    assert hashes(start(tmp_path / "run", config(), attempt=1)) == hashes(waits)


def test_a_stop_without_time_names_the_save_that_was_under_way(tmp_path: Path) -> None:
    asked = iter([False, False, True])
    hasty = config("resilience.grace_s=0.0001")
    with pytest.raises(Preempted, match=r"not possible, last good checkpoint: step 2"):
        start(tmp_path / "run", hasty, vote=lambda: next(asked))


@pytest.mark.parametrize("step", [3, 4, 9])
def test_an_exception_beside_a_save_leaves_it_and_a_restart_gives_the_same_bits(
    tmp_path: Path, waits: Result, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    monkeypatch.setenv(INJECT, f"raise:rank=0,step={step}")
    with pytest.raises(InjectedFault):
        start(tmp_path / "run", config())
    newest = CheckpointManager(RunDir(tmp_path / "run").checkpoints).steps()[-1]
    assert newest == (step - 1) // 2 * 2
    assert hashes(start(tmp_path / "run", config(), attempt=1)) == hashes(waits)


def test_a_full_disk_ends_the_run_at_the_next_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, checkpoints = os.fsync, RunDir(tmp_path / "run").checkpoints

    def full(descriptor: int) -> None:
        if "step-4" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointWriteError, match=r"step 4 could not be written.*No space left"):
        start(tmp_path / "run", config("data.train.args={}"))
    assert CheckpointManager(checkpoints).steps() == [2]


def test_where_it_is_not_said_only_a_gpu_saves_beside_the_steps() -> None:
    silent = config("checkpoint.async=null").checkpoint
    assert (silent.is_asynchronous("cuda"), silent.is_asynchronous("cpu")) == (True, False)
    assert config("checkpoint.async=false").checkpoint.is_asynchronous("cuda") is False
    assert config("checkpoint.async=true").checkpoint.is_asynchronous("cpu") is True


def test_a_config_that_does_not_say_it_has_the_hash_that_it_had() -> None:
    silent = config("checkpoint={every_steps: 2}")
    assert config_xxh3(silent) == config_xxh3(config("checkpoint.async=null"))
    assert config_xxh3(silent) != config_xxh3(config("checkpoint.async=true"))
