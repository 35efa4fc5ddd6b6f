"""Ranks have one form in every message."""

from __future__ import annotations

import pytest

from dist_train.rundir.name_ranks import name_ranks


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1, 2, 5], "ranks 0-2,5"),
        ({2, 0, 4}, "ranks 0,2,4"),
        (range(1000), "ranks 0-999"),
        (range(0, 40, 2), "ranks 0,2,4,6,8,10,12,14,… (20 in all)"),
    ],
)
def test_intervals_as_slurm_writes_them(ranks: list[int], text: str) -> None:
    assert name_ranks(ranks) == text
