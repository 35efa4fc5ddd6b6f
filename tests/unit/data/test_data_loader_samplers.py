"""`sampler=` and `batch_sampler=`: an order that follows from (seed, epoch), at every world size."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.loader import loader
from dist_train.data.permutation import Permutation
from dist_train.errors import CheckpointError, ConfigError

N = 50
IDS = TensorDataset(torch.arange(N))
LENGTHS = [(7 * i) % 23 + 1 for i in range(N)]


class ByLength(Sampler[list[int]]):
    """Batches of samples of like length, in a random order, as most bucketing samplers are written."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        ids = sorted(range(N), key=lambda i: (LENGTHS[i], random.random()))
        batches = [ids[at : at + self.batch_size] for at in range(0, N, self.batch_size)]
        random.shuffle(batches)
        yield from batches


class ByTokens(ByLength):
    """As many samples as fit; another number of batches in each epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for i in torch.randperm(N).tolist():
            if batch and sum(LENGTHS[j] for j in [*batch, i]) > 60:
                yield batch
                batch = []
            batch.append(i)
        yield batch


class ByEpoch:
    """The protocol of set_epoch, with a generator of its own."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(N).tolist())


def even_ids(seed: int, epoch: int) -> Any:
    return np.random.default_rng([seed, epoch]).permutation(N // 2) * 2


def by_length(seed: int, epoch: int) -> Any:
    """As docs/concepts/data-order.md has it."""
    rng = np.random.default_rng([seed, epoch])
    ids = np.lexsort((rng.random(len(LENGTHS)), LENGTHS))  # equal lengths in a random order
    batches = [ids[at : at + 8] for at in range(0, len(ids), 8)]
    return [batches[i] for i in rng.permutation(len(batches))]


def with_private_generator() -> Sampler[int]:
    return WeightedRandomSampler([1.0 + i for i in range(N)], 40, generator=torch.Generator().manual_seed(1))


SAMPLERS = [
    RandomSampler(IDS),
    RandomSampler(IDS, replacement=True, num_samples=70),
    with_private_generator(),
    SubsetRandomSampler(range(10, 40)),
    SequentialSampler(IDS),
    [4, 2, 0, 4],
    ByEpoch(),
    even_ids,
]
BATCH_SAMPLERS = [
    ByLength(8),
    ByTokens(8),
    BatchSampler(RandomSampler(IDS), 8, drop_last=True),
    by_length,
    lambda seed, epoch: torch.as_tensor(np.array(even_ids(seed, epoch))).split(4),
]


def steps_of(world_size: int, accumulate: int = 1, epochs: int = 2, **options: Any) -> list[list[list[int]]]:
    """Ids of each step of each epoch, over all ranks, in global order."""
    ranks = [
        ExactLoader(IDS, rank=rank, world_size=world_size, accumulate=accumulate, seed=3, **options)
        for rank in range(world_size)
    ]
    found = []
    for _ in range(epochs):
        steps: list[list[int]] = []
        per_rank = [list(one.micro_batches()) for one in ranks]
        for at in range(0, len(per_rank[0]), accumulate):
            mine = [
                [i for m in micros[at : at + accumulate] for i in m.batch[0].tolist()[: m.count]]
                for micros in per_rank
            ]
            steps.append([mine[q % world_size][q // world_size] for q in range(sum(map(len, mine)))])
            assert {micros[at].step_count for micros in per_rank} == {len(steps[-1])}
        found.append(steps)
    return found


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda one: type(one).__name__)
def test_a_sampler_s_order_is_the_same_at_every_world_size_and_follows_the_epoch(sampler: Any) -> None:
    torch.manual_seed(1)
    alone = steps_of(1, sampler=sampler, batch_size=8)
    torch.manual_seed(2)
    random.seed(5)
    assert steps_of(3, sampler=sampler, batch_size=8) == alone
    assert steps_of(2, accumulate=2, sampler=sampler, batch_size=8) == alone
    if not isinstance(sampler, list | SequentialSampler):
        assert alone[0] != alone[1]
    if isinstance(sampler, list):
        assert alone[0] == [[4, 2, 0, 4]]


@pytest.mark.parametrize("sampler", BATCH_SAMPLERS, ids=lambda one: type(one).__name__)
def test_a_batch_sampler_s_batches_are_the_steps_of_the_whole_job(sampler: Any) -> None:
    torch.manual_seed(1)
    alone = steps_of(1, batch_sampler=sampler)
    random.seed(5)
    assert steps_of(3, batch_sampler=sampler) == alone
    assert steps_of(2, accumulate=2, batch_sampler=sampler) == alone
    assert alone[0] != alone[1]
    if isinstance(sampler, ByLength):
        assert sorted(i for step in alone[0] for i in step) == list(range(N))
    if isinstance(sampler, ByTokens):
        assert all(sum(LENGTHS[i] for i in step) <= 60 for epoch in alone for step in epoch)


def test_samplers_change_with_the_seed_and_keep_the_training_s_random_state() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    orders = [
        [i for (batch,) in loader(IDS, 8, sampler=RandomSampler(IDS), seed=seed) for i in batch.tolist()]
        for seed in (0, 1)
    ]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == list(range(N))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def test_a_sampler_s_own_generator_is_put_back() -> None:
    sampler: Any = with_private_generator()
    own = sampler.generator
    state = own.get_state()
    list(loader(IDS, 8, sampler=sampler))
    assert sampler.generator is own
    assert torch.equal(own.get_state(), state)


@pytest.mark.parametrize("options", [{"sampler": ByEpoch(), "batch_size": 8}, {"batch_sampler": ByTokens(8)}])
def test_a_resume_at_another_world_size_goes_on_in_the_same_order(options: dict[str, Any]) -> None:
    (first, second) = steps_of(1, **options)
    two = [ExactLoader(IDS, rank=rank, world_size=2, seed=3, **options) for rank in range(2)]
    runs = [one.micro_batches() for one in two]
    for _ in range(len(first) + 2):
        for at, run in enumerate(runs):
            if next(run, None) is None:
                runs[at] = two[at].micro_batches()
                next(runs[at])
    states = [json.loads(json.dumps(one.state_dict())) for one in two]
    assert states[0] == states[1]
    assert states[0]["samples_in_epoch"] == sum(map(len, second[:2]))
    assert states[0]["samples_total"] == sum(map(len, [*first, *second[:2]]))
    one = ExactLoader(IDS, seed=3, **options)
    one.load_state_dict(states[0])
    assert [batch[0].tolist() for batch in one] == second[2:]
    assert one.state_dict()["samples_total"] == sum(map(len, [*first, *second]))


def test_a_resume_with_other_weights_is_refused_inside_an_epoch() -> None:
    def weighted(heavy: int) -> ExactLoader:
        weights = [100.0 if i == heavy else 1.0 for i in range(N)]
        return loader(IDS, 8, sampler=WeightedRandomSampler(weights, 40))

    saved = weighted(3)
    at_the_start = saved.state_dict()
    next(iter(saved))
    with pytest.raises(CheckpointError, match=r"the order of epoch 0 was .* and is .* now"):
        weighted(4).load_state_dict(saved.state_dict())
    with pytest.raises(CheckpointError, match="is no sampler now"):
        loader(IDS, 8).load_state_dict(saved.state_dict())
    weighted(3).load_state_dict(saved.state_dict())
    weighted(4).load_state_dict(at_the_start)


class Private:
    """Shuffles by a generator that each epoch moves on."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.rng.permutation(N).tolist())


class Endless:
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": Private()}, "Private gave two orders for one seed and epoch"),
        ({"sampler": DistributedSampler(IDS, 2, 0)}, "DistributedSampler gives one rank's part"),
        ({"sampler": iter(range(4))}, "an iterator .*read once only"),
        ({"sampler": 7}, "can be neither iterated nor called"),
        ({"sampler": Endless()}, "more than 1050000 items"),
        (
            {"sampler": RandomSampler(IDS, replacement=True, num_samples=10**10)},
            "10000000000 items for 50 samples",
        ),
        ({"sampler": [0, N]}, "gave sample 50 of a data set of 50"),
        ({"sampler": [-1]}, "gave sample -1"),
        ({"sampler": []}, "gave no samples"),
        ({"sampler": [[0, 1]]}, "no sample id"),
        ({"sampler": [0.5]}, "no sample id"),
        ({"batch_sampler": [[0]]}, "batch_size does not go with batch_sampler"),
        ({"batch_size": None}, "batch_size=None"),
        ({"batch_size": None, "batch_sampler": [0]}, "no sample id"),
        ({"batch_size": None, "batch_sampler": [[0], []]}, "an empty batch"),
        ({"batch_size": None, "batch_sampler": []}, "no batches"),
        ({"batch_size": None, "batch_sampler": [[0]], "drop_last": True}, "drop_last does not go"),
        (
            {"batch_size": None, "batch_sampler": BatchSampler(DistributedSampler(IDS, 2, 0), 4, False)},
            "DistributedSampler gives one rank's part",
        ),
        ({"drop_last": True, "batch_size": 64}, "drop_last leaves nothing of 50 samples"),
    ],
)
def test_what_cannot_be_an_order_is_refused_at_construction(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loader(IDS, **{"batch_size": 8, **options})


def test_drop_last_leaves_out_the_small_step_of_each_epoch() -> None:
    for world_size in (1, 3):
        assert steps_of(world_size, batch_size=8, drop_last=True) == [
            [[Permutation(N, 3, epoch)[at + q] for q in range(8)] for at in range(0, 48, 8)]
            for epoch in range(2)
        ]
    one = loader(IDS, 8, drop_last=True)
    assert (len(one), one.samples_per_epoch) == (6, 48)
    list(one)
    assert (one.epoch, one.state_dict()["samples_total"]) == (1, 48)
    other = loader(IDS, 8)
    other.load_state_dict(one.state_dict())  # where an epoch begins, both read on
    assert (other.epoch, other.step) == (1, 0)
    assert [len(batch) for (batch,) in loader(IDS, 8, sampler=list(range(20)), drop_last=True)] == [8, 8]


def test_accumulated_plain_batches_say_when_the_step_is_complete() -> None:
    one = loader(IDS, 20, accumulate=2, shuffle=False)
    seen = [(len(batch), one.step_complete, one.samples_in_epoch) for (batch,) in one]
    assert seen == [
        (10, False, 0),
        (10, True, 20),
        (10, False, 20),
        (10, True, 40),
        (5, False, 40),
        (5, True, 50),
    ]
    assert (len(one), one.steps_per_epoch) == (6, 3)
