"""Ranks draw alike from dt.init to dt.prepare, each its own numbers from there on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset, random_split

import dist_train as dt

pytestmark = pytest.mark.multiprocess


def _draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]


def test_a_split_after_init_is_one_split_and_dropout_after_prepare_differs(ranks: Any) -> None:
    def rank_main(meeting: str) -> dict[str, Any]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            train, held_out = random_split(TensorDataset(torch.arange(40)), [30, 10])
            split = sorted(train.indices), sorted(held_out.indices)
            permuted = np.random.permutation(10).tolist(), torch.randperm(10).tolist(), random.random()
            dt.prepare(nn.Linear(2, 2))
            first = _draws()
            dt.prepare(nn.Linear(2, 2))  # the second model of a GAN does not begin the numbers again
            return {"split": split, "permuted": permuted, "draws": [*first, *_draws()]}

    all_ranks = ranks(3, rank_main)
    assert all(one["split"] == all_ranks[0]["split"] for one in all_ranks)
    assert all(one["permuted"] == all_ranks[0]["permuted"] for one in all_ranks)
    every = [value for one in all_ranks for value in one["draws"]]
    assert len(set(every)) == len(every), "dropout must differ between ranks"


def test_a_restored_rng_state_is_not_replaced_by_a_later_prepare(ranks: Any, tmp_path: Path) -> None:
    def rank_main(meeting: str, resumed: bool) -> list[float]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            model = nn.Linear(2, 2)
            manager = dt.checkpoint.CheckpointManager(tmp_path / "checkpoints")
            if resumed:
                manager.load_latest({"model": model})
                dt.prepare(model)
                return _draws()
            model = dt.prepare(model)
            _draws()
            manager.save(1, {"model": model})
            return _draws()

    assert ranks(2, rank_main, False) == ranks(2, rank_main, True)


def test_a_model_wrapped_by_hand_asks_for_its_own_numbers(ranks: Any) -> None:
    def rank_main(meeting: str) -> tuple[list[float], list[float]]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            before = _draws()
            run.seed_this_rank()
            return before, _draws()

    (same_0, own_0), (same_1, own_1) = ranks(2, rank_main)
    assert same_0 == same_1
    assert not set(own_0) & set(own_1)


def test_one_process_draws_on_as_if_nothing_had_been_prepared() -> None:
    def draws(prepared: bool) -> list[float]:
        with dt.init(seed=5, device="cpu"):
            if prepared:
                dt.prepare(nn.Identity())
            return _draws()

    assert draws(True) == draws(False)


def test_without_a_seed_prepare_seeds_nothing(ranks: Any) -> None:
    def rank_main(meeting: str) -> float:
        torch.manual_seed(7)
        with dt.init(device="cpu", init_method=meeting, timeout_s=20):
            dt.prepare(nn.Linear(2, 2))
            torch.manual_seed(7)
            dt.prepare(nn.Linear(2, 2))
            return float(torch.rand(()))

    first, second = ranks(2, rank_main)
    assert first == second
