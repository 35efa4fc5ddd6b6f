"""What a dataset draws is keyed by sample: at any worker count and world size; the RNG state is kept."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.reading.sample_rng import may_draw
from dist_train.datasets.digits import Digits

Sample = tuple[int, torch.Tensor]


class Noisy(Dataset[Sample]):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Sample:
        draws = [random.random(), float(np.random.rand()), float(torch.rand(())), float(np.random.randn())]
        return index, torch.tensor(draws, dtype=torch.float64)


class Declared(Noisy):
    deterministic_items = True


def draws_of(loaders: list[ExactLoader]) -> dict[int, list[float]]:
    found = {}
    for one in loaders:
        for micro_batch in one.micro_batches():
            ids, values = micro_batch.batch
            if micro_batch.count:
                found.update(dict(zip(ids.tolist(), values.tolist(), strict=True)))
    return found


def streams() -> list[Any]:
    return [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()]


def test_a_sample_s_draws_are_the_same_with_any_workers_and_ranks() -> None:
    alone = draws_of([ExactLoader(Noisy(), 7, seed=1)])
    assert len({tuple(draws) for draws in alone.values()}) == 24
    assert draws_of([ExactLoader(Noisy(), 7, seed=1, workers=2)]) == alone
    four = [ExactLoader(Noisy(), 7, seed=1, rank=r, world_size=4, accumulate=2) for r in range(4)]
    assert draws_of(four) == alone


def test_seed_epoch_and_dataset_change_the_draws() -> None:
    one = ExactLoader(Noisy(), 24, seed=1)
    epochs = [draws_of([one])[5] for _ in range(2)]
    others = [
        draws_of([ExactLoader(Noisy(), 24, seed=2)])[5],
        draws_of([ExactLoader(Noisy(), 24, seed=1, dataset_id="b")])[5],
    ]
    assert len({tuple(draws) for draws in [*epochs, *others]}) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_keeps_the_trainings_rng_state(workers: int) -> None:
    np.random.randn()  # leaves a cached second value, which is part of the state
    before = streams()
    first = list(ExactLoader(Noisy(), 7, workers=workers))
    assert streams() == before
    random.random()
    torch.rand(1)
    for (ids, draws), (_, again) in zip(first, ExactLoader(Noisy(), 7, workers=workers), strict=True):
        assert torch.equal(draws, again), ids


def test_an_error_inside_the_dataset_keeps_the_rng_state() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Sample:
            super().__getitem__(index)
            raise ValueError("bad sample")

    before = streams()
    with pytest.raises(ValueError, match="bad sample"):
        next(iter(ExactLoader(Broken(), 7)))
    assert streams() == before


def noisy_collate(samples: list[Any]) -> list[float]:
    return [random.random() for _ in samples]


@pytest.mark.parametrize("dataset", [Noisy(), Declared()])
def test_a_random_collate_is_keyed_too(dataset: Dataset[Sample]) -> None:
    before = streams()
    here = list(ExactLoader(dataset, 7, collate_fn=noisy_collate))
    assert streams() == before
    assert here == list(ExactLoader(dataset, 7, collate_fn=noisy_collate, workers=2))
    assert len({tuple(batch) for batch in here}) == len(here)


@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_digits_are_the_same_bits_at_every_worker_count(workers: int) -> None:
    batches = list(zip(range(3), ExactLoader(Digits(augment=True), 32, workers=workers), strict=False))
    again = list(zip(range(3), ExactLoader(Digits(augment=True), 32), strict=False))
    for (_, (images, labels)), (_, (images_again, labels_again)) in zip(batches, again, strict=True):
        assert torch.equal(images, images_again)
        assert torch.equal(labels, labels_again)


class Augmented(TensorDataset):
    """A subclass may draw."""


def test_keying_is_skipped_only_for_datasets_that_draw_nothing() -> None:
    plain = TensorDataset(torch.zeros(4))
    assert not may_draw(plain)
    assert not may_draw(Subset(plain, [0, 1]))
    assert not may_draw(ConcatDataset([plain, Declared()]))
    assert not may_draw(Digits())
    assert may_draw(Noisy())
    assert may_draw(Digits(augment=True))
    assert may_draw(Subset(Noisy(), [0]))
    assert may_draw(ConcatDataset([plain, Noisy()]))
    assert may_draw(Augmented(torch.zeros(4)))
    assert may_draw([1, 2, 3]) is True
