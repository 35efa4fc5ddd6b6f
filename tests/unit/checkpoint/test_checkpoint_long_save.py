"""A save that lasts longer than every time-out is not ended by them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

import dist_train as dt
from dist_train.checkpoint import manager as manager_module
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.rundir import durable_files
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

TIMEOUT_S = 1.0


def save_for(seconds: float, busy: bool, directory: Path) -> int:
    with dt.init(device="cpu", timeout_s=20, collective_timeout_s=TIMEOUT_S) as run:
        run.progress("step 1", 1)
        take = manager_module.take_snapshot

        def slow(*arguments: object) -> object:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.02 if busy else seconds)
            return take(*arguments)

        manager_module.take_snapshot = slow
        manager = CheckpointManager(directory)
        manager.save(1, {"x": torch.ones(3)})
        run.progress("step 2", 2)
        return manager.load_latest({"x": torch.zeros(3)}).step


@pytest.mark.multiprocess
def test_a_save_longer_than_the_collective_timeout_is_committed(tmp_path: Path) -> None:
    assert run_ranks(save_for, 2, args=(2.5 * TIMEOUT_S, True, tmp_path)) == [1, 1]


@pytest.mark.multiprocess
def test_a_save_that_hangs_is_still_ended_by_the_watchdog(tmp_path: Path) -> None:
    with pytest.raises(RanksFailed, match=signal.SIGABRT.name):
        run_ranks(save_for, 2, args=(30.0, False, tmp_path))
    assert not list(tmp_path.glob("step-*"))


def test_a_large_file_is_flushed_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(durable_files, "FLUSH_EVERY", 100)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    with durable_files.durable_file(tmp_path / "x") as write:
        for _ in range(5):
            write(memoryview(bytes(60)))
    assert flushed == [120, 240]
