"""Saves in the background by several ranks: hashes, poison, kills, full disks, hangs."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_crash import FullDisk, Killed
from sharded_training import Layout, make, train, whole_state

import dist_train as dt
from dist_train.checkpoint import CheckpointManager
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.errors import CheckpointWriteError
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

pytestmark = pytest.mark.multiprocess
FSDP, DDP = Layout("fsdp", 2), Layout("ddp", 2)


class Own:
    """What each rank writes itself."""

    def __init__(self, rank: int) -> None:
        self.values = torch.full((3,), float(rank))

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.values = state["values"]


def in_other_threads(name: str, until: threading.Event) -> None:
    """Let no other thread than this one pass an operation before `until`."""
    real, main = getattr(os, name), threading.current_thread()

    def held(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not main:
            assert until.wait(20)
        return real(*args, **kwargs)

    setattr(os, name, held)


def save_and_poison(directory: Path, layout: Layout) -> tuple[str, str, str, str]:
    """(state, weights) hashes of a save that waits, then of one in the background of the same state."""
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(layout, 0)
        train(run, model, optimizer, 0, 2)
        own = Own(run.rank)
        state = {"model": model, "optimizer": optimizer, "own": dt.checkpoint.PerRank(own)}
        waits = CheckpointManager(directory / "waits").save(2, state)

        saves, go = CheckpointManager(directory / "goes on"), threading.Event()
        in_other_threads("mkdir", go)
        in_other_threads("write", go)
        pending = saves.start_save(2, state)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.fill_(7)
            for moments in optimizer.state.values():
                for value in moments.values():
                    value.fill_(7)
            own.values.fill_(7)
        # The training's collectives and the save's are of different groups.
        train(run, model, optimizer, 2, 4)
        assert not pending.is_done
        go.set()
        committed = saves.wait()
        assert committed is not None
        assert saves.load_latest(state) is not None
        assert own.values.tolist() == [float(run.rank)] * 3
        return waits.state_hash, waits.weights_hash, committed.state_hash, committed.weights_hash


@pytest.mark.parametrize("layout", [DDP, FSDP], ids=lambda layout: layout.name)
def test_hashes_are_those_of_a_save_that_waits(tmp_path: Path, layout: Layout) -> None:
    found = run_ranks(save_and_poison, 2, args=(tmp_path, layout))
    state, weights, *background = found[0]
    assert found[0] == found[1]
    assert background == [state, weights]
    assert verify_checkpoint(tmp_path / "goes on" / "step-00000002").ok


def save_in_background(directory: Path, who: int, at: int) -> tuple[int, list[dict[str, str]]]:
    """Save steps 1 and 2 beside the training; rank `who` is killed at its change `at` of the second.

    Returns how many changes this rank made then, and the digests of both states.
    """
    with dt.init(device="cpu", seed=1, timeout_s=30) as run:
        model, optimizer = make(FSDP, 0)
        saves = CheckpointManager(directory, run_id="run", attempt=0)
        state = {"model": model, "optimizer": optimizer}
        train(run, model, optimizer, 0, 1)
        saves.start_save(1, state)
        states = [whole_state(model, optimizer)]
        train(run, model, optimizer, 1, 2)
        states.append(whole_state(model, optimizer))
        saves.wait()
        files = Killed(directory, at if run.rank == who else 0)
        with pytest.MonkeyPatch.context() as patch:
            files.install(patch)
            saves.start_save(2, state)
            train(run, model, optimizer, 2, 3)
            saves.wait()
        return files.count, states


def resume(directory: Path) -> tuple[int, dict[str, str]]:
    with dt.init(device="cpu", seed=9, timeout_s=30):
        model, optimizer = make(FSDP, 5)
        saves = CheckpointManager(directory, run_id="run", attempt=1)
        restored = saves.load_latest({"model": model, "optimizer": optimizer})
        assert restored is not None
        return restored.step, whole_state(model, optimizer)


def killed_at(directory: Path, who: int, at: int, states: list[dict[str, str]]) -> int:
    """The step that is found after a kill there."""
    with pytest.raises(RanksFailed):
        run_ranks(save_in_background, 2, args=(directory, who, at), after_failure_s=0.5)
    found = run_ranks(resume, 2, args=(directory,))
    step = found[0][0]
    assert found == [(step, states[step - 1])] * 2
    assert verify_checkpoint(directory / f"step-{step:08d}").ok
    assert not (directory / "quarantine").exists()
    return step


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("who", "at"), [(1, 2), (0, 9)])
def test_a_kill_in_the_middle_leaves_the_checkpoint_before(tmp_path: Path, who: int, at: int) -> None:
    states = run_ranks(save_in_background, 2, args=(tmp_path / "whole", -1, 0))[0][1]
    assert killed_at(tmp_path / "killed", who, at, states) == 1


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.proves(
    "A rank killed at any file operation of a save in the background leaves a whole checkpoint"
)
def test_a_kill_at_any_change_of_any_rank(tmp_path: Path) -> None:
    ranks = run_ranks(save_in_background, 2, args=(tmp_path / "whole", -1, 0))
    assert all(count > 5 for count, _ in ranks)
    seen = [
        killed_at(tmp_path / f"{who}-{at}", who, at, ranks[0][1])
        for who, (count, _) in enumerate(ranks)
        for at in range(1, count + 1)
    ]
    assert set(seen) == {1, 2}


def save_to_a_full_disk(directory: Path, at_close: bool) -> str:
    run = dt.init(device="cpu", timeout_s=30)
    model, optimizer = make(FSDP, 0)
    state = {"model": model, "optimizer": optimizer}
    saves = CheckpointManager(directory)
    with pytest.MonkeyPatch.context() as patch:
        if run.rank == 1:
            FullDisk(directory, "write", 1, errno.ENOSPC).install(patch)
        pending = saves.start_save(1, state)
        while not pending.is_done:
            time.sleep(0.01)
    with pytest.raises(CheckpointWriteError) as caught:
        run.close() if at_close else saves.start_save(2, state)
    if not at_close:
        saves.start_save(2, state)
    run.close()
    return str(caught.value)


@pytest.mark.parametrize("at_close", [False, True], ids=["next save", "end of the run"])
def test_a_disk_that_is_full_for_one_rank_is_that_error_on_all(tmp_path: Path, at_close: bool) -> None:
    said = run_ranks(save_to_a_full_disk, 2, args=(tmp_path, at_close))
    assert "rank 1's files could not be written" in said[1]
    assert said[0] == f"on rank 1: {said[1]}"
    names = sorted(name for name in os.listdir(tmp_path) if name.startswith("step"))
    assert names == ([] if at_close else ["step-00000002"])


def save_unlike_weights(directory: Path) -> str:
    with dt.init(device="cpu", timeout_s=30) as run:
        saves = CheckpointManager(directory)
        saves.start_save(1, {"x": torch.ones(3)})
        with pytest.raises(ReplicaMismatch) as caught:
            saves.start_save(2, {"x": torch.full((3,), float(run.rank))})
        return str(caught.value)


def test_ranks_that_differ_are_named_at_once(tmp_path: Path) -> None:
    said = run_ranks(save_unlike_weights, 2, args=(tmp_path,))
    assert "step 2 is not saved" in said[0]
    assert (tmp_path / "step-00000001" / "manifest.json").exists()  # the run's end has waited for it


TIMEOUT_S = 1.0


def work_for(seconds: float) -> None:
    """Use processor time now and then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)


def save_slowly(directory: Path, who_hangs: str) -> int:
    """A save of 2.5 s, or 60 s; the time-out of collectives and of the watchdog is 1 s."""
    with dt.init(device="cpu", timeout_s=20, collective_timeout_s=TIMEOUT_S) as run:
        run.progress("step 1", 1)
        real, main = os.mkdir, threading.current_thread()

        def slow(*args: Any, **kwargs: Any) -> None:
            if threading.current_thread() is not main:
                time.sleep(60) if who_hangs == "save" else work_for(60 if who_hangs else 2.5 * TIMEOUT_S)
            real(*args, **kwargs)

        os.mkdir = slow
        saves = CheckpointManager(directory)
        saves.start_save(1, {"x": torch.ones(3)})
        if who_hangs == "training":
            time.sleep(10)
            os._exit(0)  # the watchdog has not ended it
        committed = saves.wait()
        assert committed is not None
        return committed.step


def test_a_wait_for_a_long_save_counts_as_progress(tmp_path: Path) -> None:
    assert run_ranks(save_slowly, 2, args=(tmp_path, "")) == [1, 1]


@pytest.mark.parametrize("who", ["save", "training"])
def test_a_hang_is_ended_whoever_hangs(tmp_path: Path, who: str) -> None:
    """A save that goes on hides no training that hangs; nor does a save that hangs go unseen."""
    with pytest.raises(RanksFailed, match=signal.SIGABRT.name):
        run_ranks(save_slowly, 2, args=(tmp_path, who))


def leave_by_an_error(directory: Path) -> None:
    with dt.init(device="cpu", timeout_s=30) as run:
        saves = CheckpointManager(directory)
        saves.start_save(1, {"x": torch.ones(3)})
        if run.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("mine")


def test_an_exception_beside_a_dead_rank_does_not_wait_for_it(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="mine"):
        run_ranks(leave_by_an_error, 2, args=(tmp_path,), after_failure_s=15)
    assert time.monotonic() - began < 30
