"""dt.loader in a launched rank: only inside a run. Loader workers of different ranks have different seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import dist_train as dt
from dist_train.data.exact_loader import ExactLoader
from dist_train.errors import ConfigError


class WorkerSeeds(Dataset[int]):
    """Item i is what torch's worker_init_fn recipe gives: the worker's seed."""

    deterministic_items = True
    seed = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return self.seed


def take_seed(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    info.dataset.dataset.seed = torch.initial_seed() % 2**32


def test_a_launched_rank_is_refused_before_init_and_after_the_end(ranks: Any) -> None:
    def rank_main(meeting: str) -> int:
        data = TensorDataset(torch.arange(12))
        with pytest.raises(ConfigError, match=r"rank \d of 2, and dt.init has not been called") as caught:
            dt.loader(data, batch_size=4)
        assert "run = dt.init(seed=0)" in str(caught.value)
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            count = sum(len(x) for (x,) in dt.loader(data, batch_size=4))
        with pytest.raises(ConfigError, match="its run is closed"):
            dt.loader(data, batch_size=4)
        return count

    assert ranks(2, rank_main) == [6, 6]


def test_one_process_needs_no_init() -> None:
    assert sum(len(x) for (x,) in dt.loader(TensorDataset(torch.arange(12)), batch_size=4)) == 12


def test_workers_of_all_ranks_have_different_seeds_and_rank_0s_are_as_before() -> None:
    def seeds(rank: int) -> set[int]:
        one = ExactLoader(WorkerSeeds(), 8, rank=rank, world_size=2, workers=2, worker_init_fn=take_seed)
        return {seed for batch in one for seed in batch.tolist()}

    first, second = seeds(0), seeds(1)
    assert not first & second
    assert first == {3897600765}
