"""`__getitems__` is used while it draws nothing; what a sample is does not depend on how it was read."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.reading.batched_items import has_batched_items


class Queried(Dataset[int]):
    """A data set for which a batch is one query."""

    def __init__(self, n: int = 64) -> None:
        self.n = n
        self.queries: list[list[int]] = []
        self.singles = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.singles += 1
        return self.item(index)

    def __getitems__(self, ids: list[int]) -> list[Any]:
        self.queries.append(ids)
        return [self.item(index) for index in ids]

    def item(self, index: int) -> Any:
        return index * 3


class DrawsForSome(Queried):
    """Augments every fifth sample."""

    def item(self, index: int) -> Any:
        return index + (random.random() if index % 5 == 0 else 0.0)


class DrawsFromNumpy(Queried):
    def item(self, index: int) -> Any:
        return index + float(np.random.rand())


class DrawsBehindFork(Queried):
    """Draws without moving the global state."""

    def item(self, index: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            return index + float(torch.rand(()))


class SingleDraws(DrawsForSome):
    """The same without a batched query."""

    __getitems__ = None  # type: ignore[assignment]


def values(dataset: Any, world_size: int = 1, batch_size: int = 16, **options: Any) -> dict[int, float]:
    """Sample id -> value, over the ranks."""
    found = {}
    for rank in range(world_size):
        one = ExactLoader(dataset, batch_size, seed=2, rank=rank, world_size=world_size, **options)
        for batch in one:
            found.update({int(value): float(value) for value in batch})
    return found


def test_a_batch_is_one_query(caplog: pytest.LogCaptureFixture) -> None:
    dataset = Queried()
    batches = list(ExactLoader(dataset, 16, shuffle=False))
    assert torch.equal(torch.cat(batches), torch.arange(64) * 3)
    assert [len(ids) for ids in dataset.queries] == [16] * 4
    assert dataset.singles == 2  # compared with the first query
    assert caplog.text == ""


def test_a_subset_of_it_queries_too() -> None:
    dataset = Queried()
    batches = list(ExactLoader(Subset(dataset, range(10, 42)), 16, shuffle=False))
    assert torch.equal(torch.cat(batches), torch.arange(10, 42) * 3)
    assert dataset.queries == [list(range(10, 26)), list(range(26, 42))]


@pytest.mark.parametrize("kind", [DrawsForSome, DrawsFromNumpy, DrawsBehindFork])
def test_draws_are_keyed_by_sample_at_any_world_size_and_workers(
    kind: type[Queried], caplog: pytest.LogCaptureFixture
) -> None:
    alone = values(kind())
    assert len(caplog.records) == 1
    assert f"{kind.__name__}.__getitems__ is not used" in caplog.text
    assert len(set(alone.values())) == 64
    # The expected value: every sample on its own.
    assert values(kind(), batch_size=1) == alone
    assert values(kind(), world_size=3, accumulate=2) == alone
    assert values(kind(), workers=2) == alone


def test_what_is_drawn_is_as_before_batches_were_used() -> None:
    assert values(DrawsForSome()) == values(SingleDraws())


def test_once_refused_it_is_not_asked_again_also_by_later_workers() -> None:
    dataset = DrawsForSome()
    one = ExactLoader(dataset, 16, workers=1, persistent_workers=False)
    list(one)
    reader = one._torch_loader.reader
    assert reader.batched is not None
    assert reader.batched._refused.item() == 1
    here = ExactLoader(dataset, 16, shuffle=False)
    list(here)
    assert len(dataset.queries) == 1


def test_other_values_than_single_items_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    class Rounded(Queried):
        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [self.item(index) + 1e-9 for index in ids]

    assert values(Rounded()) == {index * 3: index * 3.0 for index in range(64)}
    assert "gives other values than dataset[i]" in caplog.text


def test_too_few_samples_are_noticed(caplog: pytest.LogCaptureFixture) -> None:
    class Short(Queried):
        def __getitems__(self, ids: list[int]) -> list[Any]:
            return [self.item(index) for index in ids][:-1]

    assert len(values(Short())) == 64
    assert "15 samples for 16 ids" in caplog.text


def test_a_data_set_with_batched_items_alone() -> None:
    class Only(Dataset[int]):
        def __len__(self) -> int:
            return 8

        def __getitems__(self, ids: list[int]) -> list[int]:
            return ids

    batches = [batch.tolist() for batch in ExactLoader(Only(), 4, shuffle=False)]
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_reading_keeps_the_training_s_random_state() -> None:
    before = random.getstate(), torch.get_rng_state().tolist()
    list(ExactLoader(DrawsForSome(), 16))
    assert (random.getstate(), torch.get_rng_state().tolist()) == before


class Fails(Dataset[int]):
    """Draws from numpy's generator and fails, at its second batch."""

    def __init__(self) -> None:
        self.batches = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, ids: list[int]) -> list[int]:
        self.batches += 1
        if self.batches == 2:
            np.random.normal()
            raise OSError("the query failed")
        return ids


def test_an_error_in_a_query_keeps_the_training_s_random_state() -> None:
    np.random.normal()  # leaves a second number for later
    before = str(np.random.get_state()), random.getstate(), torch.get_rng_state().tolist()
    batches = iter(ExactLoader(Fails(), 4))
    next(batches)
    with pytest.raises(OSError, match="the query failed"):
        next(batches)
    assert (str(np.random.get_state()), random.getstate(), torch.get_rng_state().tolist()) == before


def test_torch_s_subset_has_no_query_of_its_own() -> None:
    assert not has_batched_items(Subset([1, 2], [0]))  # type: ignore[arg-type]
    assert has_batched_items(Subset(Queried(), [0]))
    assert not has_batched_items(Subset(SingleDraws(), [0]))
