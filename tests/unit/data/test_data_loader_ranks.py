"""Ranks of one run: a sampler's orders are compared, BatchNorm at a share of one sample is refused early."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, WeightedRandomSampler

import dist_train as dt
from dist_train.errors import ConfigError
from dist_train.testing import RanksFailed, run_ranks

pytestmark = pytest.mark.multiprocess
N = 20


def inputs() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(torch.randn(N, 4, generator=generator), torch.randn(N, 1, generator=generator))


class Normed(nn.Module):
    """Its BatchNorm sees `length` values per sample and channel."""

    def __init__(self, length: int = 1) -> None:
        super().__init__()
        self.length = length
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        repeated = x.repeat_interleave(self.length, dim=0)
        return self.head(self.norm(repeated)[:: self.length])


def train(length: int, options: dict[str, Any]) -> list[int]:
    """Sizes of this rank's batches of an epoch."""
    with dt.init(seed=0, device="cpu"):
        model = dt.prepare(Normed(length))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = dt.loader(inputs(), **{"batch_size": 16, **options})
        sizes = []
        for x, y in loader:
            nn.functional.mse_loss(model(x), y).backward()
            if loader.step_complete:
                optimizer.step()
                optimizer.zero_grad()
            sizes.append(len(x))
        return sizes


def weighted(heavy_of_rank: bool) -> list[int]:
    with dt.init(seed=0, device="cpu") as run:
        weights = [10.0 if heavy_of_rank and i == run.rank else 1.0 for i in range(N)]
        loader = dt.loader(inputs(), 8, sampler=WeightedRandomSampler(weights, N))
        return [len(x) for x, _ in loader]


def test_batch_norm_at_a_share_of_one_sample_is_refused_in_the_first_step_and_drop_last_helps() -> None:
    assert run_ranks(train, 1, args=(1, {})) == [[16, 4]]
    with pytest.raises(RanksFailed) as caught:
        run_ranks(train, 3, args=(1, {}))
    assert sorted(caught.value.tracebacks) == [0, 1, 2]
    for text in caught.value.tracebacks.values():
        assert "BatchNorm 'norm' will get a micro-batch of one sample" in text
        assert "has 4 samples for 3 micro-batches" in text
        assert "drop_last=True of dt.loader" in text
    sizes = run_ranks(train, 3, args=(1, {"drop_last": True}))
    assert [len(one) for one in sizes] == [1, 1, 1]
    assert sum(size for one in sizes for size in one) == 16


def test_accumulation_makes_the_share_smaller_and_more_values_per_sample_are_enough() -> None:
    with pytest.raises(RanksFailed) as caught:
        run_ranks(train, 2, args=(1, {"accumulate": 8, "drop_last": True}))
    assert "a batch_size of at least 32" in caught.value.tracebacks[0]
    assert [len(one) for one in run_ranks(train, 2, args=(2, {"accumulate": 8}))] == [16, 16]


def test_ranks_with_other_weights_are_refused_at_the_first_batch() -> None:
    assert run_ranks(weighted, 2, args=(False,)) == [[4, 4, 2]] * 2
    with pytest.raises(RanksFailed) as caught:
        run_ranks(weighted, 2, args=(True,))
    for text in caught.value.tracebacks.values():
        assert "order is '" in text
        assert "make the sampler from the same data on all ranks" in text


def test_one_process_is_refused_as_well_and_evaluation_is_not() -> None:
    with dt.init(seed=0, device="cpu"):
        model = dt.prepare(Normed())
        loader = dt.loader(inputs(), 19)
        model.eval()
        assert [len(model(x)) for x, _ in loader] == [19, 1]
        model.train()
        batches = iter(loader)
        first = next(batches)[0]
        with pytest.raises(ConfigError, match="the smallest step of an epoch has 1 samples"):
            model(first)
        model(torch.zeros(3, 4))  # the check is gone with the first step


def test_a_compiled_model_is_not_broken_by_the_check() -> None:
    with dt.init(seed=0, device="cpu"):
        model = dt.prepare(Normed())
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        for x, _ in dt.loader(inputs(), 16):
            compiled(x).sum().backward()
