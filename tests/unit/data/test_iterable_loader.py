"""IterableLoader: each sample of a stream once at any world size, resumed exactly; unlike streams refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from iterable_datasets import Count, Shuffled, Sized, Stateful, Sticky, WithIterator
from torch.utils.data import IterableDataset

from dist_train.data.loader import loader
from dist_train.data.streams.iterable_loader import IterableLoader
from dist_train.data.streams.stream_agreement import hash_of_sample
from dist_train.errors import CheckpointError, ConfigError, UsageError

KINDS = [Count, Sized, Shuffled, Stateful, WithIterator]


def epoch_of(dataset: Any, batch_size: int = 4, **options: Any) -> list[list[int]]:
    return [batch.tolist() for batch in IterableLoader(dataset, batch_size, seed=5, **options)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_one_process_reads_the_stream_in_its_order(kind: Any, workers: int) -> None:
    one = loader(kind(22), 4, seed=5, workers=workers)
    assert isinstance(one, IterableLoader)
    before = torch.get_rng_state()
    first, second = [batch.tolist() for batch in one], [batch.tolist() for batch in one]
    assert torch.equal(torch.get_rng_state(), before)
    assert [len(batch) for batch in first] == [len(batch) for batch in second] == [4] * 5 + [2]
    base = 1000 if kind is Shuffled else 0
    assert sorted(chain(*first)) == list(range(22))
    assert sorted(chain(*second)) == list(range(base, base + 22))
    assert (chain(*first) != range(22)) or kind is not Shuffled
    assert first == epoch_of(kind(22), workers=0)
    assert (one.epoch, one.samples_in_epoch) == (2, 0)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("at", [1, 3, 5, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resume_gives_exactly_the_rest(kind: Any, at: int, workers: int) -> None:
    one = IterableLoader(kind(22), 4, seed=5)
    list(one)
    whole = [batch.tolist() for batch in one]
    again = IterableLoader(kind(22), 4, seed=5, workers=workers)
    list(again)
    batches = iter(again)
    done = [next(batches).tolist() for _ in range(at)]
    state = json.loads(json.dumps(again.state_dict()))
    batches.close()  # type: ignore[attr-defined]
    assert (state["epoch"], state["samples_in_epoch"]) == (1, min(4 * at, 22))
    assert state["samples_total"] == 22 + min(4 * at, 22)
    resumed = IterableLoader(kind(22), 4, seed=5, workers=workers)
    resumed.load_state_dict(state)
    assert done + [batch.tolist() for batch in resumed] == whole
    assert (resumed.epoch, resumed.samples_in_epoch) == (2, 0)
    # In the process that broke out of its loop too.
    assert done + [batch.tolist() for batch in again] == whole


def test_a_stateful_data_set_is_not_read_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dist_train")
    one = IterableLoader(Stateful(1000), 4)
    batches = iter(one)
    for _ in range(200):
        next(batches)
    resumed = IterableLoader(Stateful(1000), 4)
    resumed.load_state_dict(one.state_dict())
    Stateful.read = 0
    assert next(iter(resumed)).tolist() == [800, 801, 802, 803]
    assert Stateful.read == 4
    assert "goes on from its own state_dict" in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_was_looked_into_before_begins_as_it_begins(workers: int) -> None:
    data = Sticky(22)
    assert next(iter(data)) == 0
    assert sorted(chain(*epoch_of(data, workers=workers))) == list(range(22))
    stateful = Stateful(22)
    next(iter(IterableLoader(stateful, 4)))  # another loader's reading moves nothing
    assert sorted(chain(*epoch_of(stateful, workers=workers))) == list(range(22))


def test_what_a_resume_skips_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dist_train")
    one = IterableLoader(Count(30), 4)
    batches = iter(one)
    next(batches)
    IterableLoader(Count(30), 4).load_state_dict(one.state_dict())
    assert "its first 4 samples are skipped" in caplog.text


def test_the_position_in_other_data_is_refused() -> None:
    one = IterableLoader(Sized(30), 4)
    next(iter(one))
    state = one.state_dict()
    for other, words in [
        (IterableLoader(Sized(31), 4), "n was 30"),
        (IterableLoader(Sized(30), 4, seed=1), "seed was 0"),
        (IterableLoader(Sized(30), 8), "batch_size was 4"),
    ]:
        with pytest.raises(CheckpointError, match=words):
            other.load_state_dict(state)
    short = IterableLoader(Count(3), 1)
    short.seek(0, 9)
    with pytest.raises(CheckpointError, match="ends after 3 samples"):
        next(iter(short))


def test_wrong_lengths_and_streams_that_end_for_good_are_refused() -> None:
    wrong = Sized(9)
    one = IterableLoader(wrong, 4)
    wrong.n = 10
    with pytest.raises(ConfigError, match="gave 10 samples in epoch 0, and its length is 9"):
        list(one)

    class Once(IterableDataset[int]):
        values = iter(range(8))

        def __iter__(self) -> Iterator[int]:
            return self.values

    once = IterableLoader(Once(), 4)
    assert len(list(once)) == 2
    with pytest.raises(ConfigError, match="gave no sample in epoch 1"):
        list(once)


def test_steps_are_known_only_with_a_length() -> None:
    assert (len(IterableLoader(Sized(9), 4)), IterableLoader(Sized(9), 4).n) == (3, 9)
    with pytest.raises(TypeError, match="Count has no __len__"):
        len(IterableLoader(Count(9), 4))
    with pytest.raises(ConfigError, match="Count has no length"):
        _ = IterableLoader(Count(9), 4).n


def test_micro_batches_divide_each_step() -> None:
    one = IterableLoader(Count(10), 4, accumulate=3)
    parts = [
        (part.batch.tolist(), part.count, part.step_count, part.step, part.micro, part.samples_in_epoch)
        for part in one.micro_batches()
    ]
    assert parts == [
        ([0, 1], 2, 4, 0, 0, 4),
        ([2], 1, 4, 0, 1, 4),
        ([3], 1, 4, 0, 2, 4),
        ([4, 5], 2, 4, 1, 0, 8),
        ([6], 1, 4, 1, 1, 8),
        ([7], 1, 4, 1, 2, 8),
        ([8], 1, 2, 2, 0, 10),
        ([9], 1, 2, 2, 1, 10),
        ([8], 0, 2, 2, 2, 10),
    ]
    complete = [(batch.tolist(), one.step_complete, one.samples_in_epoch) for batch in one][:3]
    assert complete == [([0, 1], False, 0), ([2], False, 0), ([3], True, 4)]


def test_drop_last_leaves_out_a_smaller_last_step() -> None:
    one = IterableLoader(Sized(10), 4, drop_last=True)
    assert (len(one), one.n, one.samples_per_epoch) == (2, 10, 8)
    assert [batch.tolist() for batch in one] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (one.epoch, one.state_dict()["samples_total"]) == (1, 8)
    assert [len(batch) for batch in IterableLoader(Count(10), 4, drop_last=True)] == [4, 4]


def test_the_length_is_the_number_of_batches_of_a_plain_loop() -> None:
    one = IterableLoader(Sized(10), 4, accumulate=2)
    assert len(one) == len(list(iter(one))) == 6
    assert one.steps_per_epoch == 3


def test_a_stream_that_is_iterated_with_gradients_disabled_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        list(IterableLoader(Count(10), 4))
    assert "a training loader is iterated with gradients disabled" in caplog.text


def test_an_iterator_that_was_overtaken_is_refused() -> None:
    one = IterableLoader(Count(40), 4)
    first = iter(one)
    next(first)
    next(iter(one))
    with pytest.raises(UsageError, match="after another iteration"):
        next(first)


def test_the_hash_of_a_sample_is_of_its_content() -> None:
    samples = [
        torch.arange(3),
        torch.arange(3).int(),
        torch.arange(3).reshape(3, 1),
        torch.arange(4)[:3] + 1,
        {"a": 1},
        {"b": 1},
        (1, "2"),
        [1, "2"],
        b"x",
        None,
        0.5,
    ]
    assert len({hash_of_sample(sample) for sample in samples}) == len(samples)
    assert hash_of_sample({"a": torch.ones(2)[::1]}) == hash_of_sample({"a": torch.ones(4)[::2]})
