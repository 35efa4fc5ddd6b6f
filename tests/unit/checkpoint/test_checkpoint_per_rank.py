"""PerRank: each rank's own state comes back to the rank that saved it."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from checkpoint_cases import manager

import dist_train as dt
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.checkpoint.state.per_rank import PerRank
from dist_train.distributed.control_group import Control
from dist_train.errors import CheckpointError, ConfigError
from dist_train.testing import run_ranks


class Replay:
    """A buffer that is longer on later ranks and holds tensors."""

    def __init__(self, rank: int = 0) -> None:
        self.items: Any = deque([torch.full((2,), float(rank))] * (rank + 1), maxlen=8)
        self.name = f"rank {rank}"

    def state_dict(self) -> dict[str, Any]:
        return {"items": self.items, "name": self.name}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.items, self.name = state["items"], state["name"]


def all_of(states: list[Any], rank: int, world_size: int) -> dict[str, Any]:
    items = [item for state in states for item in state["items"]]
    return {"items": deque(items[rank::world_size]), "name": f"{rank} of {world_size}"}


def save_and_load(directory: Path, do_save: bool, reshard: Any = None) -> None:
    torch_dist.init_process_group("gloo")
    rank, world_size = torch_dist.get_rank(), torch_dist.get_world_size()
    control = Control(torch_dist.group.WORLD, rank, world_size)
    manage = CheckpointManager(directory, run_id="run", attempt=0, control=control)
    if do_save:
        manage.save(1, {"replay": PerRank(Replay(rank)), "x": torch.ones(1)})
    into = Replay(7)
    manage.load_latest({"replay": PerRank(into, reshard=reshard), "x": torch.zeros(1)})
    if reshard is None:
        assert into.name == f"rank {rank}"
        assert [item.tolist() for item in into.items] == [[float(rank)] * 2] * (rank + 1)
        assert into.items.maxlen == 8
    else:
        assert into.name == f"{rank} of {world_size}"
        flat = [0.0, 1.0, 1.0, 2.0, 2.0, 2.0]
        assert [item[0].item() for item in into.items] == flat[rank::world_size]
    torch_dist.barrier()
    torch_dist.destroy_process_group()


@pytest.mark.multiprocess
def test_each_rank_gets_its_own_back_and_another_number_of_ranks_is_refused_or_divides_it(
    tmp_path: Path,
) -> None:
    run_ranks(save_and_load, 3, args=(tmp_path, True))
    with pytest.raises(CheckpointError, match="3 ranks saved it, 1 load it") as caught:
        manager(tmp_path).load_latest({"replay": PerRank(Replay()), "x": torch.zeros(1)})
    assert "PerRank(obj, reshard=" in str(caught.value)
    run_ranks(save_and_load, 2, args=(tmp_path, False, all_of))
    assert manager(tmp_path, attempt=2).verify(1).ok


def test_one_process_saves_it_too(tmp_path: Path) -> None:
    manager(tmp_path).save(1, {"replay": dt.checkpoint.PerRank(Replay(2))})
    into = Replay()
    manager(tmp_path).load_latest({"replay": PerRank(into)})
    assert (into.name, len(into.items)) == ("rank 2", 3)
    with pytest.raises(CheckpointError, match="was saved as per_rank"):
        manager(tmp_path).load_latest({"replay": into})


def test_it_needs_both_methods() -> None:
    with pytest.raises(ConfigError, match=r"PerRank\(list\): it has no state_dict\(\)"):
        PerRank([1])
