"""Batches copied ahead. No GPU here: the copies are a stand-in's, which only writes down what is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from dist_train.data import feed, shared_memory
from dist_train.data.exact import ExactLoader, loader
from dist_train.data.prefetch import ahead, copies_to
from dist_train.errors import ConfigError


class PretendCopies:
    """NOT a CUDA stream: a diary of starts and finishes."""

    def __init__(self) -> None:
        self.diary: list[str] = []

    def start(self, batch: Any) -> Any:
        self.diary.append(f"start {batch}")
        return batch

    def finish(self, batch: Any) -> None:
        self.diary.append(f"finish {batch}")


def test_the_next_copy_begins_before_the_current_batch_is_handed_out() -> None:
    copies = PretendCopies()
    for batch in ahead(["a", "b", "c"], copies):
        copies.diary.append(f"train {batch}")
    assert copies.diary == [
        *("start a", "finish a", "start b", "train a"),
        *("finish b", "start c", "train b"),
        *("finish c", "train c"),
    ]


def test_nothing_is_lost_or_doubled_whatever_the_batches_are() -> None:
    batches = [None, (), 0, {"x": 1}]
    assert list(ahead(batches, PretendCopies())) == batches
    assert list(ahead([], PretendCopies())) == []


def test_an_error_comes_when_its_batch_is_due() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise OSError("the disk")

    batches = ahead(broken(), PretendCopies())
    assert next(batches) == "a"  # it was read well, and is trained on
    with pytest.raises(OSError, match="the disk"):
        next(batches)


def test_the_position_is_that_of_the_batch_in_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading ahead must not move what a checkpoint says of the data."""
    copies = PretendCopies()
    monkeypatch.setattr(feed, "copies_to", lambda device: copies)
    data = ExactLoader(TensorDataset(torch.arange(10)), 4, shuffle=False)
    plain = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    seen = []
    for (batch,) in data:
        seen.append(batch.tolist())
        started = sum(word.startswith("start") for word in copies.diary)
        assert (data.step, data.samples_in_epoch) == (len(seen), min(4 * len(seen), 10))
        assert started == min(len(seen) + 1, 3)  # one more than was handed out
    assert seen == plain


def test_a_cpu_run_copies_nothing() -> None:
    assert copies_to(None) is None
    assert copies_to(torch.device("cpu")) is None
    assert len(list(loader(TensorDataset(torch.arange(4)), 2, device="cpu"))) == 2
    with pytest.raises(ConfigError, match="did you mean 'cuda:0'"):
        loader(TensorDataset(torch.arange(4)), 2, device="cuda: 0")


@pytest.mark.parametrize(
    ("workers", "total", "warned"), [(2, 64 << 20, True), (0, 64 << 20, False), (2, 1 << 30, False)]
)
def test_a_small_shared_memory_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, workers: int, total: int, warned: bool
) -> None:
    monkeypatch.setattr(shared_memory, "_told", False)
    for _ in range(2):
        shared_memory.warn_if_small(workers, total)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == warned
    assert all("/dev/shm has 64 MiB, and 2 loader worker(s)" in line for line in told)
