"""Several ranks write one checkpoint: each its own file, committed by rank 0, and whole or not there."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from checkpoint_cases import manifest_of
from checkpoint_crash import FullDisk, Killed

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.state.per_rank import PerRank
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.checkpoint.store.writer_lock import LOCK
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointWriteError
from dist_train.testing import run_ranks
from dist_train.testing.ranks import RanksFailed

pytestmark = pytest.mark.multiprocess
RANKS = 2


class Replay:
    """A rank's own tensor."""

    def __init__(self, value: float) -> None:
        self.value = torch.full((1000,), value)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def control() -> Control:
    torch_dist.init_process_group("gloo")
    return Control(torch_dist.group.WORLD, torch_dist.get_rank(), torch_dist.get_world_size())


def own(rank: int, step: int) -> float:
    return 10.0 * step + rank


def save(manager: CheckpointManager, step: int, rank: int) -> None:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, float(step))
    torch.nn.init.zeros_(model.bias)
    manager.save(step, {"model": model, "replay": PerRank(Replay(own(rank, step)))})


def save_first(directory: Path, attempt: int) -> None:
    here = control()
    save(CheckpointManager(directory, run_id="run", attempt=attempt, control=here), 1, here.rank)
    torch_dist.destroy_process_group()


def resume(directory: Path, attempt: int) -> tuple[int, float, float]:
    """The step, a weight and this rank's own value of what is there."""
    here = control()
    model, replay = torch.nn.Linear(2, 2), Replay(-1.0)
    manager = CheckpointManager(directory, run_id="run", attempt=attempt, control=here)
    restored = manager.load_latest({"model": model, "replay": PerRank(replay)})
    torch_dist.destroy_process_group()
    assert restored is not None
    return restored.step, float(model.weight[0, 0]), float(replay.value[-1])


def save_second(directory: Path, who: int, at: int) -> int:
    """Save step 2; rank `who` is killed at its change `at`. Returns how many changes this rank made."""
    here = control()
    files = Killed(directory, at if here.rank == who else 0)
    with pytest.MonkeyPatch.context() as patch:
        files.install(patch)
        save(CheckpointManager(directory, run_id="run", attempt=1, control=here), 2, here.rank)
    torch_dist.destroy_process_group()
    return files.count


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A folder that holds step 1."""
    run_ranks(save_first, RANKS, args=(tmp_path, 0))
    return tmp_path


def killed_at(directory: Path, who: int, at: int) -> int:
    """The step that is found after a kill there."""
    with pytest.raises(RanksFailed):
        run_ranks(save_second, RANKS, args=(directory, who, at), after_failure_s=0.5)
    found = run_ranks(resume, RANKS, args=(directory, 2))
    step = found[0][0]
    assert found == [(step, float(step), own(rank, step)) for rank in range(RANKS)]
    assert verify_checkpoint(directory / f"step-{step:08d}").ok
    assert not [name for name in FileStorage(directory).names() if name.startswith(".")]
    assert not (directory / "quarantine").exists()
    return step


def test_each_rank_writes_its_own_file_and_one_manifest_lists_all(first: Path) -> None:
    manifest = manifest_of(first, 1)
    own_files = {key: entry.shards[0].file for key, entry in manifest.tensors.items() if "/state/" in key}
    assert own_files == {f"rank{r}/state/replay/value": f"rank{r}.safetensors" for r in range(RANKS)}
    assert verify_checkpoint(first / "step-00000001").ok
    assert run_ranks(resume, RANKS, args=(first, 1)) == [(1, 1.0, own(rank, 1)) for rank in range(RANKS)]


@pytest.mark.parametrize(("who", "at"), [(0, 1), (0, 9), (0, 20), (1, 1), (1, 3)])
def test_a_kill_in_the_middle_leaves_the_checkpoint_before(first: Path, who: int, at: int) -> None:
    assert killed_at(first, who, at) == 1


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.proves("A rank killed at any of its file operations of a save leaves a whole checkpoint")
def test_a_kill_at_any_change_of_any_rank(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    run_ranks(save_first, RANKS, args=(counted, 0))
    counts = run_ranks(save_second, RANKS, args=(counted, -1, 0))
    assert counts[0] > 20
    assert counts[1] > 2
    seen = []
    for who, count in enumerate(counts):
        for at in range(1, count + 1):
            directory = tmp_path / f"{who}-{at}"
            run_ranks(save_first, RANKS, args=(directory, 0))
            seen.append(killed_at(directory, who, at))
    assert set(seen) == {1, 2}


def save_to_a_full_disk(directory: Path, who: int, operation: str) -> str:
    here = control()
    manager = CheckpointManager(directory, run_id="run", attempt=1, control=here)
    with pytest.MonkeyPatch.context() as patch:
        if here.rank == who:
            FullDisk(directory, operation, 1, errno.ENOSPC).install(patch)
        with pytest.raises(CheckpointWriteError) as caught:
            save(manager, 2, here.rank)
    save(manager, 3, here.rank)
    torch_dist.destroy_process_group()
    return str(caught.value)


@pytest.mark.parametrize("operation", ["write", "fsync", "close"])
def test_a_disk_that_is_full_for_one_rank_is_that_error_on_all_and_nothing_is_left(
    first: Path, operation: str
) -> None:
    said = run_ranks(save_to_a_full_disk, RANKS, args=(first, 1, operation))
    assert "rank 1's files could not be written" in said[1]
    assert "rank1.safetensors: No space left on device" in said[1]
    assert said[0] == f"on rank 1: {said[1]}"
    there = sorted(name for name in os.listdir(first) if name != LOCK)
    assert there == ["fence.json", "step-00000001", "step-00000003"]


def refuse(directory: Path) -> str:
    here = control()
    manager = CheckpointManager(directory, run_id="run", attempt=1, control=here)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStorage, "free_bytes", lambda self: 100_000)
        with pytest.raises(CheckpointWriteError) as caught:
            manager.save(
                2, {"replay": PerRank(Replay(0.0 if here.rank else 1.0)), "big": PerRank(Big(here.rank))}
            )
    torch_dist.destroy_process_group()
    return str(caught.value)


class Big(Replay):
    """Large on rank 1 only."""

    def __init__(self, rank: int) -> None:
        self.value = torch.zeros(100_000 * rank)


def test_disk_space_for_the_files_of_all_ranks_is_checked_first(first: Path) -> None:
    said = run_ranks(refuse, RANKS, args=(first,))
    assert "has 100,000 bytes free" in said[0]
    assert said[1] == f"on rank 0: {said[0]}"


class Drawing(Replay):
    """Its state_dict() draws a random number, as one that shuffles does."""

    def state_dict(self) -> dict[str, Any]:
        return {"value": torch.rand(1)}


def draw(directory: Path) -> tuple[float, float]:
    """The random number after a save, and after a load of it."""
    here = control()
    manager = CheckpointManager(directory, run_id="run", attempt=0, control=here)
    manager.save(1, {"own": PerRank(Drawing(0.0))})
    after_save = float(torch.rand(()))
    manager.load_latest({"own": PerRank(Drawing(0.0))})
    torch_dist.destroy_process_group()
    return after_save, float(torch.rand(()))


def test_random_numbers_that_the_save_itself_draws_do_not_part_a_resumed_run(tmp_path: Path) -> None:
    for after_save, after_load in run_ranks(draw, RANKS, args=(tmp_path,)):
        assert after_save == after_load
