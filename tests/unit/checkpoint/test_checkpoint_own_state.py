"""PerRank state of unlike ranks: empty tensors, unlike entries, unlike directories, tensors in use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from dist_train.checkpoint.format.byte_stream import Write
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.state.per_rank import PerRank
from dist_train.checkpoint.store.file import FileStorage
from dist_train.checkpoint.store.verify import verify_checkpoint
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointWriteError
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess
RANKS = 2


class Own:
    """Whatever a rank holds."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def manager(directory: Path, attempt: int = 0) -> CheckpointManager:
    if not torch_dist.is_initialized():
        torch_dist.init_process_group("gloo")
    control = Control(torch_dist.group.WORLD, torch_dist.get_rank(), torch_dist.get_world_size())
    return CheckpointManager(directory, run_id="run", attempt=attempt, control=control)


def empty_replay(directory: Path) -> list[int]:
    """What comes back of a replay buffer that holds nothing yet on rank 1."""
    rows = torch.zeros(0 if manager(directory).control.rank else 3, 4)
    manager(directory).save(1, {"replay": PerRank(Own({"rows": rows}))})
    own = Own(None)
    manager(directory, attempt=1).load_latest({"replay": PerRank(own)})
    return list(own.state["rows"].shape)


def test_a_tensor_without_elements_on_a_rank_above_0_comes_back(tmp_path: Path) -> None:
    assert run_ranks(empty_replay, RANKS, args=(tmp_path,)) == [[3, 4], [0, 4]]
    assert (tmp_path / "step-00000001" / "rank1.safetensors").exists()


def only_on(rank: int) -> dict[str, Any]:
    return {"replay": PerRank(Own({}))} if torch_dist.get_rank() == rank else {}


def other_names(_: int) -> dict[str, Any]:
    return {f"replay{torch_dist.get_rank()}": PerRank(Own({}))}


def plain_on(rank: int) -> dict[str, Any]:
    own = Own({})
    return {"replay": own if torch_dist.get_rank() == rank else PerRank(own)}


def save_unlike(directory: Path, state: Callable[[int], dict[str, Any]], rank: int) -> tuple[str, str | None]:
    manage = manager(directory)
    with pytest.raises(ReplicaMismatch) as caught:
        manage.save(1, {"x": torch.ones(1), **state(rank)})
    # Nobody is left waiting: all ranks go on together.
    manage.save(2, {"x": torch.ones(1)})
    return str(caught.value), caught.value.hint


@pytest.mark.parametrize(
    ("state", "rank", "said"),
    [
        (only_on, 0, "rank 0 has 'replay', rank 1 has none"),
        (only_on, 1, "rank 0 has none, rank 1 has 'replay'"),
        (other_names, 0, "rank 0 has 'replay0', rank 1 has 'replay1'"),
        (plain_on, 1, "rank 0 has 'replay', rank 1 has none"),
    ],
)
def test_ranks_with_unlike_per_rank_entries_are_refused(
    tmp_path: Path, state: Callable[[int], dict[str, Any]], rank: int, said: str
) -> None:
    for text, hint in run_ranks(save_unlike, RANKS, args=(tmp_path, state, rank)):
        assert "step 1 is not saved" in text
        assert said in text
        assert "PerRank" in str(hint)


def save_apart(directory: Path, leftover: bool) -> str:
    """Each rank in a directory of its own, by a relative path."""
    rank = int(os.environ["RANK"])
    own = directory / str(rank)
    (own / "checkpoints").mkdir(parents=True)
    if rank and leftover:
        (own / "checkpoints" / ".step-1.tmp-0").mkdir()
    os.chdir(own)
    with pytest.raises(CheckpointWriteError) as caught:
        manager(Path("checkpoints")).save(1, {"replay": PerRank(Own({"rank": torch.ones(1)}))})
    return str(caught.value)


@pytest.mark.parametrize(
    ("leftover", "said"),
    [
        (False, "rank 1 does not find .step-1.tmp-0, which rank 0 has created"),
        (True, "rank 0 does not find rank1.safetensors, which rank 1 has written"),
    ],
)
def test_ranks_with_directories_of_their_own_are_refused(tmp_path: Path, leftover: bool, said: str) -> None:
    for text in run_ranks(save_apart, RANKS, args=(tmp_path, leftover)):
        assert said in text
        assert "shared" in text
    assert not (tmp_path / "0" / "checkpoints" / "step-00000001").exists()


def save_while_it_is_filled(directory: Path) -> list[bool]:
    """The buffer changes before each write of its file, as one that another thread fills; what comes back."""
    manage, rows = manager(directory), torch.zeros(4_000_000)
    new_file = FileStorage.new_file

    @contextmanager
    def filling(storage: FileStorage, key: str) -> Iterator[Write]:
        with new_file(storage, key) as write:

            def fill_and_write(view: memoryview) -> None:
                if "/rank" in key:
                    rows.add_(1)
                write(view)

            yield fill_and_write

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileStorage, "new_file", filling)
        manage.save(1, {"replay": PerRank(Own({"rows": rows}))})
    own = Own(None)
    manager(directory, attempt=1).load_latest({"replay": PerRank(own)})
    found = own.state["rows"]
    return [bool((found >= 0).all()), bool((found <= rows).all())]


def test_a_buffer_that_another_thread_fills_meanwhile_makes_no_damaged_file(tmp_path: Path) -> None:
    assert run_ranks(save_while_it_is_filled, RANKS, args=(tmp_path,)) == [[True, True]] * RANKS
    assert verify_checkpoint(tmp_path / "step-00000001").problems == ()
