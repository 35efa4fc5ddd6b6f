"""The traps that need two processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from example_runs import load_example
from torch.utils.data import TensorDataset

import dist_train as dt
from dist_train.testing import run_ranks


def test_two_processes_split_each_batch_and_save_plain_names() -> None:
    def rank_main() -> Any:
        file = load_example("from_tutorials/data_parallel.py")
        data = TensorDataset(torch.zeros(100, 5))
        return file.tutorial(data, 30, devices=2), file.ours(data, 30)

    def shared(rows: list[int]) -> None:
        assert rows == [15, 15, 15, 5]

    def plain(names: list[str]) -> None:
        assert names == ["weight", "bias"]

    for tutorial, ours in run_ranks(rank_main, 2):
        shared(ours[0])
        plain(ours[1])
        with pytest.raises(AssertionError, match="30, 30, 30, 10"):
            shared(tutorial[0])
        with pytest.raises(AssertionError, match=r"'module\.weight' != 'weight'"):
            plain(tutorial[1])


@pytest.mark.proves(
    "Each trap of the tutorials has a test that the tutorial's own form fails",
    limits="CPU",
)
def test_two_processes_train_the_weights_of_one() -> None:
    def rank_main() -> dict[str, list[float]]:
        file = load_example("from_tutorials/distributed_data_parallel.py")
        with dt.init(seed=0, device="cpu"):
            return {form.__name__: form() for form in (file.alone, file.tutorial, file.ours)}

    def check(learned: dict[str, list[float]], form: str) -> None:
        assert learned[form] == pytest.approx(learned["alone"], rel=1e-5)

    for learned in run_ranks(rank_main, 2):
        check(learned, "ours")
        with pytest.raises(AssertionError, match=r"0\.61"):  # the slope; it is 0.89 alone
            check(learned, "tutorial")


def test_two_processes_have_the_mean_over_all_tokens() -> None:
    def rank_main() -> dict[str, list[float]]:
        file = load_example("from_tutorials/token_means.py")
        with dt.init(seed=0, device="cpu") as run:
            return {"alone": file.alone(), "tutorial": file.tutorial(run), "ours": file.ours(run)}

    for learned in run_ranks(rank_main, 2):
        assert learned["ours"] == pytest.approx(learned["alone"], rel=1e-5)
        assert learned["tutorial"] != pytest.approx(learned["alone"], rel=1e-2)
