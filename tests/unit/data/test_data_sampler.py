"""DistributedSampler: torch's arguments, padding and length, with a position that survives a resize."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import torch.utils.data.distributed as torch_sampler
from torch.utils.data import DataLoader

from dist_train.data.permutation import Permutation
from dist_train.data.sampler import DistributedSampler
from dist_train.errors import CheckpointError


def interleaved(parts: list[list[int]]) -> list[int]:
    return [part[i] for i in range(len(parts[0])) for part in parts]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [1, 2, 7, 96, 1001])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_unshuffled_it_gives_exactly_what_torch_s_gives(n: int, world_size: int, drop_last: bool) -> None:
    for rank in range(world_size):
        ours = DistributedSampler(range(n), world_size, rank, shuffle=False, drop_last=drop_last)
        theirs: torch_sampler.DistributedSampler[int] = torch_sampler.DistributedSampler(
            range(n),  # type: ignore[arg-type]
            world_size,
            rank,
            shuffle=False,
            drop_last=drop_last,
        )
        assert list(ours) == list(theirs)
        assert (len(ours), ours.num_samples, ours.total_size) == (
            len(theirs),
            theirs.num_samples,
            theirs.total_size,
        )


def test_shuffled_every_replica_has_its_stride_of_one_order_and_the_first_ones_are_repeated() -> None:
    samplers = [DistributedSampler(range(10), 4, rank, seed=5) for rank in range(4)]
    for sampler in samplers:
        sampler.set_epoch(3)
    order = Permutation(10, 5, 3)[np.arange(10)].tolist()
    assert interleaved([list(sampler) for sampler in samplers]) == order + order[:2]


def test_set_epoch_chooses_the_order_and_seed_is_not_added_to_it() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        sampler = DistributedSampler(range(50), 1, 0, seed=seed)
        sampler.set_epoch(epoch)
        return list(sampler)

    assert order(0, 1) == order(0, 1)
    assert order(0, 1) != order(1, 0)
    assert order(0, 1) != order(0, 0)


def test_padding_is_logged_once_by_rank_0_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for rank in range(4):
        list(DistributedSampler(range(10), 4, rank))
        list(DistributedSampler(range(8), 4, rank))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1
    assert "10 samples over 4 replicas: 2 repeated" in messages[0]


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_position_saved_with_4_replicas_is_resumed_with_2_and_3(shuffle: bool) -> None:
    n = 60
    order: list[int] = []
    state = None
    for world_size, per_rank in [(4, 3), (2, 6), (3, None)]:
        samplers = [
            DistributedSampler(range(n), world_size, rank, shuffle, seed=2) for rank in range(world_size)
        ]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
            sampler.set_epoch(0)  # the usual loop calls it again: the position is kept
            assert len(sampler) == (n - len(order)) // world_size
        order += interleaved([list(sampler)[:per_rank] for sampler in samplers])
        state = samplers[0].state_dict(consumed=len(order))
    assert sorted(order) == list(range(n))
    assert order == list(DistributedSampler(range(n), 1, 0, shuffle, seed=2))
    assert (state["epoch"], state["samples_in_epoch"]) == (1, 0)


def test_after_a_partial_epoch_epochs_are_whole_again() -> None:
    sampler = DistributedSampler(range(10), 1, 0)
    sampler.load_state_dict(sampler.state_dict(consumed=7))
    assert len(list(sampler)) == 3
    assert len(list(sampler)) == 10
    sampler.load_state_dict(sampler.state_dict(consumed=7))
    sampler.set_epoch(1)
    assert len(list(DataLoader(sampler.dataset, sampler=sampler))) == 10  # type: ignore[arg-type]


def test_a_state_of_other_data_is_refused() -> None:
    state = DistributedSampler(range(10), 1, 0).state_dict(consumed=3)
    with pytest.raises(CheckpointError, match=r"n was 10 .* 11 now"):
        DistributedSampler(range(11), 1, 0).load_state_dict(state)
    with pytest.raises(CheckpointError, match=r"seed was 0 .* 4 now"):
        DistributedSampler(range(10), 1, 0, seed=4).load_state_dict(state)
    with pytest.raises(CheckpointError, match="consumed=-1"):
        DistributedSampler(range(10), 1, 0).state_dict(consumed=-1)


def test_rank_and_size_come_from_the_launcher_s_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 2, "WORLD_SIZE": 3, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 3}.items():
        monkeypatch.setenv(name, str(value))
    sampler = DistributedSampler(range(9))
    assert (sampler.rank, sampler.num_replicas) == (2, 3)
    with pytest.raises(ValueError, match=r"Invalid rank 5, rank should be in the interval \[0, 3\]"):
        DistributedSampler(range(9), num_replicas=4, rank=5)


def test_a_huge_dataset_costs_nothing() -> None:
    class Huge:
        def __len__(self) -> int:
            return 10**12

    sampler = DistributedSampler(Huge(), 8, 3)
    assert next(iter(sampler)) == Permutation(10**12)[3]
    assert len(sampler) == 125 * 10**9
