"""The traps that need two processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from example_runs import load_example
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.testing import run_ranks


def test_two_processes_share_each_batch_and_save_plain_names() -> None:
    def rank_main(form: str) -> Any:
        file = load_example("from_tutorials/data_parallel.py")
        data = TensorDataset(torch.zeros(100, 5))
        return file.ours(data, 30) if form == "ours" else file.tutorial(data, 30, devices=2)

    def check(answers: list[tuple[list[int], list[str]]]) -> None:
        assert [rows for rows, _ in answers] == [[15, 15, 15, 5], [15, 15, 15, 5]]
        assert answers[0][1] == ["weight", "bias"]

    check(run_ranks(rank_main, 2, args=("ours",)))
    with pytest.raises(AssertionError):
        check(run_ranks(rank_main, 2, args=("tutorial",)))


def test_two_processes_learn_what_one_would() -> None:
    def rank_main() -> dict[str, list[float]]:
        file = load_example("from_tutorials/distributed_data_parallel.py")
        with dt.init(seed=0, device="cpu"):
            return {form.__name__: form() for form in (file.alone, file.tutorial, file.ours)}

    def check(learned: dict[str, list[float]], form: str) -> None:
        assert learned[form] == pytest.approx(learned["alone"], rel=1e-5)

    for learned in run_ranks(rank_main, 2):
        check(learned, "ours")
        with pytest.raises(AssertionError):
            check(learned, "tutorial")
