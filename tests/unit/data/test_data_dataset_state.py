"""A map-style data set with state_dict and load_state_dict: its state goes with the loader's position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from dist_train.checkpoint.manager import CheckpointManager
from dist_train.data.exact_loader import ExactLoader
from dist_train.errors import CheckpointError, ConfigError


class Curriculum(Dataset[int]):
    """Its level is set by the loop."""

    def __init__(self) -> None:
        self.level = 0
        self.table = torch.zeros(2)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return 100 * self.level + index

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "table": self.table}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.level = state["level"]
        self.table = state["table"]


class CountsReads(Curriculum):
    """Its state changes while it is read."""

    def __getitem__(self, index: int) -> int:
        self.level += 1
        return 100 * self.level + index


class Plain(Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index


def test_the_state_is_saved_and_restored_also_at_another_world_size_and_with_workers(tmp_path: Path) -> None:
    one = ExactLoader(Curriculum(), 4, shuffle=False, workers=1)
    batches = iter(one)
    assert next(batches).tolist() == [0, 1, 2, 3]
    one.dataset.level = 2
    one.dataset.table = torch.ones(2)
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"loader": one})
    one.close()
    other = ExactLoader(Curriculum(), 4, shuffle=False, rank=1, world_size=2, workers=1)
    assert CheckpointManager(tmp_path).load_latest({"loader": other}) is not None
    assert (other.dataset.level, other.dataset.table.tolist()) == (2, [1.0, 1.0])
    assert [batch.tolist() for batch in other] == [[205, 207], [209, 211]]
    other.close()


def test_a_change_in_the_loop_reaches_workers_in_the_next_epoch() -> None:
    one = ExactLoader(Curriculum(), 12, shuffle=False, workers=1)
    assert next(iter(one))[0] == 0
    one.dataset.level = 3
    assert next(iter(one))[0] == 300
    one.close()


def test_one_process_may_change_it_by_reading_and_resumes_to_the_same_samples() -> None:
    whole = [batch.tolist() for batch in ExactLoader(CountsReads(), 4)]
    one = ExactLoader(CountsReads(), 4)
    next(iter(one))
    other = ExactLoader(CountsReads(), 4)
    other.load_state_dict(one.state_dict())
    assert [batch.tolist() for batch in other] == whole[1:]


@pytest.mark.parametrize("options", [{"workers": 1}, {"world_size": 2, "rank": 1}])
def test_a_state_that_reading_changes_is_refused_where_there_are_copies(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="reading changed the state of CountsReads"):
        next(iter(ExactLoader(CountsReads(), 4, **options)))
    assert next(iter(ExactLoader(Curriculum(), 4, **options))) is not None


def test_a_state_without_a_taker_is_refused_and_a_taker_without_a_state_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_state = ExactLoader(Curriculum(), 4).state_dict()
    without = ExactLoader(Plain(), 4).state_dict()
    assert "dataset" not in without
    with pytest.raises(CheckpointError, match="Plain has no load_state_dict"):
        ExactLoader(Plain(), 4).load_state_dict(with_state)
    ExactLoader(Curriculum(), 4).load_state_dict(without)
    assert "no state of Curriculum" in caplog.text


# As the release before samplers and states of data sets wrote it.
OLD = {
    "epoch": 1,
    "samples_in_epoch": 4,
    "samples_total": 16,
    "batch_size": 4,
    "n": 12,
    "seed": 0,
    "shuffle": True,
    "dataset_id": "",
    "permutation_version": 1,
    "fingerprint": "b2eddeb84b2cb9dc97ca2d9a2dab7e7b",
}


def test_a_state_of_an_older_release_is_loaded_and_written_alike() -> None:
    one = ExactLoader(Plain(), 4)

    one.load_state_dict(OLD)
    assert (one.epoch, one.step) == (1, 1)
    assert one.state_dict() == OLD
