"""What ranks compare of a sample: other samples differ, another machine's rounding does not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from dist_train.data.data_agreement import index_hash
from dist_train.data.sample_summary import alike, read_summaries

IMAGE = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
OTHER = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1))


def summary(*items: Any) -> Any:
    return json.loads(read_summaries(list(items), list(range(len(items))), 0, ""))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (IMAGE, OTHER),
        (IMAGE, IMAGE.reshape(3, 8, 32)),
        ((255 * IMAGE).byte(), (255 * OTHER).byte()),
        (torch.arange(40), torch.arange(40).flip(0)),
        (3, 4),
        (0.5, 0.75),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
        ("/node0/a.png", "/node1/b.png"),
        (b"a", b"b"),
        (np.int64(1), np.int64(2)),
        ({"x": 1, "y": [2]}, {"x": 1, "y": [3]}),
        ((1, 2), (1, 2, 3)),
        (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    ],
)
def test_other_samples_are_not_alike(one: Any, other: Any) -> None:
    assert alike(summary(0, one), summary(0, one))
    assert not alike(summary(0, one), summary(0, other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (IMAGE, IMAGE + 1e-6),
        ((255 * IMAGE).byte(), (255 * IMAGE + (OTHER > 0.9)).clamp(max=255).byte()),
        (float("nan"), float("nan")),
        ("/node0/a.png", "/node1/a.png"),
        (object(), object()),
        (torch.zeros(0), torch.zeros(0)),
    ],
)
def test_what_machines_compute_differently_is_alike(one: Any, other: Any) -> None:
    assert alike(summary(0, one), summary(0, other))


def test_indices_of_nested_subsets_are_part_of_the_hash() -> None:
    data = TensorDataset(torch.arange(20))
    outer = [0, 1, 2]
    first, second = Subset(data, [3, 4, 5]), Subset(data, [5, 4, 3])
    assert index_hash(data) is None
    assert index_hash(Subset(first, outer)) != index_hash(Subset(second, outer))
    assert index_hash(ConcatDataset([data, first])) != index_hash(ConcatDataset([data, second]))
    assert index_hash(Subset(data, outer)) == index_hash(Subset(data, range(3)))
