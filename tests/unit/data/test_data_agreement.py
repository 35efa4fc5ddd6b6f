"""dt.loader refuses data that differ between ranks, and leaves correct programs alone."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

import dist_train as dt
from dist_train.distributed import keyed_exchange
from dist_train.errors import ConfigError

pytestmark = pytest.mark.multiprocess


class Listed(Dataset[Any]):
    """Samples by name, in the order of a file list."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        label = int(self.names[index])
        return torch.full((3, 5, 5), float(label)), label


def refusal(meeting: str, make: Callable[[int], Any], **options: Any) -> str:
    """What a loop over this rank's data set is refused with; "" if it is not."""
    with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
        data = dt.loader(make(run.rank), batch_size=4, **options)
        try:
            assert list(data)
        except ConfigError as error:
            return str(error)
        return ""


def names(rank: int) -> list[str]:
    listed = [str(i) for i in range(20)]
    random.Random(rank).shuffle(listed)
    return listed


@pytest.mark.proves(
    "Ranks whose data sets differ (an unsorted file list, other lengths, another split) are refused at the "
    "first batch, with the ranks and values",
    limits="length, ids, indices of a Subset, three samples",
)
@pytest.mark.parametrize("workers", [0, 1])
def test_unlike_file_lists_are_refused_on_all_ranks(ranks: Any, workers: int) -> None:
    def rank_main(meeting: str) -> str:
        return refusal(meeting, lambda rank: Listed(names(rank)), workers=workers)

    for text in ranks(2, rank_main):
        assert text.startswith("loader 0 over Listed: rank 1 has other samples than rank 0")
        assert "sorted(os.listdir(folder))" in text


def test_unlike_lengths_ids_and_splits_are_refused_with_ranks_and_values(ranks: Any) -> None:
    numbers = TensorDataset(torch.arange(20.0))

    def rank_main(meeting: str) -> list[str]:
        def split(rank: int) -> Any:
            return random_split(numbers, [10, 10], torch.Generator().manual_seed(rank))[0]

        cases: list[Callable[[int], Any]] = [
            lambda rank: TensorDataset(torch.arange([20, 17, 17][rank])),
            split,
            lambda rank: Subset(numbers, np.arange(5 + rank, 15 + rank)),
        ]
        said = [refusal(f"{meeting}-{i}", case) for i, case in enumerate(cases)]
        own = ["a", "a", "b"]
        with dt.init(seed=0, device="cpu", init_method=f"{meeting}-id", timeout_s=20) as run:
            with pytest.raises(ConfigError) as caught:
                next(iter(dt.loader(numbers, batch_size=4, dataset_id=own[run.rank])))
            return [*said, str(caught.value)]

    all_ranks = ranks(3, rank_main)
    assert all(said == all_ranks[0] for said in all_ranks)
    length, split, shifted, named = all_ranks[0]
    assert "samples is 20 on rank 0, 17 on ranks 1-2" in length
    assert "indices is" in split
    assert "indices is" in shifted
    assert "dataset_id is 'a' on ranks 0-1, 'b' on rank 2" in named


class OwnGenerator(Dataset[Any]):
    """Augments by a generator of its own, which nobody seeded; the label is fixed."""

    def __init__(self, first: int, node: int = 0) -> None:
        self.first = first
        self.node = node
        self.noise = np.random.default_rng()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[float, str, int]:
        return self.noise.random(), f"/node-{self.node}/image-{index}.png", self.first + index


def test_random_items_and_folders_of_a_node_are_no_difference_but_their_labels_are(ranks: Any) -> None:
    def rank_main(meeting: str) -> tuple[str, str]:
        torch.manual_seed(5)
        state = torch.get_rng_state()
        with dt.init(device="cpu", init_method=meeting, timeout_s=20) as run:
            assert len(list(dt.loader(OwnGenerator(0, run.rank), batch_size=4))) == 5
            assert torch.equal(state, torch.get_rng_state())
        return "", refusal(f"{meeting}-other", OwnGenerator)

    for alike, other in ranks(2, rank_main):
        assert alike == ""
        assert "rank 1 has other samples" in other


class Unreadable(Dataset[Any]):
    """The last sample is never trained on: the loop ends before it."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if index == 19:
            raise OSError("truncated")
        return index


def test_a_sample_that_cannot_be_read_is_an_error_only_where_it_is_due(ranks: Any) -> None:
    def rank_main(meeting: str) -> int:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            data = dt.loader(Unreadable(), batch_size=4, shuffle=False)
            return len(list(itertools.islice(data, 4)))

    assert ranks(2, rank_main) == [4, 4]


def test_a_position_loaded_on_one_rank_alone_is_refused(ranks: Any) -> None:
    def rank_main(meeting: str) -> str:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            data = dt.loader(TensorDataset(torch.arange(20)), batch_size=4)
            list(data)
            if run.is_main:
                data.seek(1, 8)
            with pytest.raises(ConfigError) as caught:
                list(data)
            return str(caught.value)

    first, second = ranks(2, rank_main)
    assert first == second
    assert "step is 2 on rank 0, 0 on rank 1" in first


def test_a_loop_on_one_rank_alone_is_refused_and_names_the_others(
    ranks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_exchange, "_LOOK_AFTER_S", 0.3)

    def rank_main(meeting: str) -> str:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            data = dt.loader(TensorDataset(torch.arange(20)), batch_size=4)
            alone = (lambda: list(data)) if run.is_main else (lambda: run.mean(1.0, count=1))
            with pytest.raises(ConfigError) as caught:
                alone()
            return str(caught.value)

    for text in ranks(2, rank_main):
        assert "the start of a loop over loader 0 (20 samples of TensorDataset)" in text
        assert "run.mean" in text


def test_zip_of_two_data_sets_of_one_length_is_refused_unless_it_is_asked_for() -> None:
    a, b = (TensorDataset(torch.arange(20) + 100 * k) for k in range(2))

    def read(**options: Any) -> list[tuple[int, int]]:
        loaders = (dt.loader(a, 4, **options.get("a", {})), dt.loader(b, 4, **options.get("b", {})))
        return [
            (x, y)
            for _ in range(2)
            for (xs,), (ys,) in zip(*loaders, strict=True)
            for x, y in zip(xs.tolist(), ys.tolist(), strict=True)
        ]

    with pytest.raises(ConfigError, match=r"side by side in one order(.|\n)*dataset_id=\"a\""):
        read()
    own = read(a={"dataset_id": "a"}, b={"dataset_id": "b"})
    assert sum(y - x == 100 for x, y in own) < 10
    asked = {"dataset_id": ""}
    assert all(y - x == 100 for x, y in read(a=asked, b=asked))
    plain = {"shuffle": False}
    assert all(y - x == 100 for x, y in read(a=plain, b=plain))


def test_loaders_of_one_order_that_do_not_advance_together_are_left_alone() -> None:
    a, b = (TensorDataset(torch.arange(20)) for _ in range(2))
    outer, inner = dt.loader(a, 4), dt.loader(b, 4)
    assert sum(1 for _ in outer for _ in inner) == 25
    kept = iter(outer)
    next(kept)
    assert len(list(inner)) == 5


def test_a_training_loader_without_gradients_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    data = dt.loader(TensorDataset(torch.arange(8)), 4)
    with caplog.at_level(logging.WARNING):
        list(data)
        assert not caplog.records
        with torch.no_grad():
            list(data)
            list(data)
    (record,) = caplog.records
    assert "evaluation=True" in record.getMessage()
