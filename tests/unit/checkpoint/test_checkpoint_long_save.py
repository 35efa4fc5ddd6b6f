"""A save that lasts longer than every time-out is not ended by them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

import dist_train as dt
from dist_train.checkpoint import collective_write, write_prepared
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.rundir import durable_files
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

TIMEOUT_S = 1.0


class Own:
    """What each rank writes itself."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(3)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        pass


def save_for(seconds: float, busy: bool, directory: Path, slow_part: str) -> int:
    """Save; `slow_part` of it, a function of collective_write or write_prepared, lasts so long."""
    with dt.init(device="cpu", timeout_s=20, collective_timeout_s=TIMEOUT_S) as run:
        run.progress("step 1", 1)
        module = write_prepared if hasattr(write_prepared, slow_part) else collective_write
        real = getattr(module, slow_part)

        def slow(*arguments: object) -> object:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(0.02 if busy else seconds)
            return real(*arguments)

        setattr(module, slow_part, slow)
        manager = CheckpointManager(directory)
        manager.save(1, {"x": torch.ones(3), "own": dt.checkpoint.PerRank(Own())})
        run.progress("step 2", 2)
        return manager.load_latest({"x": torch.zeros(3), "own": dt.checkpoint.PerRank(Own())}).step


# On rank 0, which the others wait for; and on rank 1, which rank 0 waits for.
PARTS = pytest.mark.parametrize("part", ["take_snapshot", "write_own_files"])


@PARTS
@pytest.mark.multiprocess
def test_a_save_longer_than_the_collective_timeout_is_committed(tmp_path: Path, part: str) -> None:
    assert run_ranks(save_for, 2, args=(2.5 * TIMEOUT_S, True, tmp_path, part)) == [1, 1]


@PARTS
@pytest.mark.multiprocess
def test_a_save_that_hangs_is_still_ended_by_the_watchdog(tmp_path: Path, part: str) -> None:
    with pytest.raises(RanksFailed, match=signal.SIGABRT.name):
        run_ranks(save_for, 2, args=(30.0, False, tmp_path, part))
    assert not list(tmp_path.glob("step-*"))


def test_a_large_file_is_flushed_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr(durable_files, "FLUSH_EVERY", 100)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: flushed.append(os.fstat(descriptor).st_size))
    with durable_files.durable_file(tmp_path / "x") as write:
        for _ in range(5):
            write(memoryview(bytes(60)))
    assert flushed == [120, 240]
