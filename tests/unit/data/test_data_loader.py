"""ExactLoader: each sample once per epoch in one order, at every world size and across resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.loader import loader
from dist_train.data.permutation import Permutation
from dist_train.distributed.gradient_weights.batch_weight import BatchWeight
from dist_train.errors import CheckpointError, ConfigError, ExitCode, UsageError

SIZES = [1, 2, 7, 96, 1001]
WORLDS = [1, 2, 3, 4, 8]


class Recorded(Dataset[int]):
    """Records the ids that are read."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.seen: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        return index


def ranks_of(n: int, world_size: int, batch_size: int = 16, **options: Any) -> list[ExactLoader]:
    """The loaders of all ranks, each with its own dataset, as in a real job."""
    return [
        ExactLoader(Recorded(n), batch_size, seed=3, rank=rank, world_size=world_size, **options)
        for rank in range(world_size)
    ]


def trained_steps(loaders: list[ExactLoader], stop_after: int | None = None) -> Iterator[list[int]]:
    """Step the ranks together; the ids of each step in global order, as recorded in __getitem__."""
    runs = [rank.micro_batches() for rank in loaders]
    for number in range(loaders[0].steps_per_epoch - loaders[0].step):
        if number == stop_after:
            break
        read: list[list[int]] = []
        for rank, run in zip(loaders, runs, strict=True):
            mine: list[int] = []
            for micro in range(rank.accumulate):
                rank.dataset.seen.clear()
                micro_batch = next(run)
                assert micro_batch.micro == micro
                if micro_batch.count == 0:
                    assert len(rank.dataset.seen) == 1  # a placeholder of weight 0
                    continue
                assert micro_batch.count == len(rank.dataset.seen) == len(micro_batch.batch)
                mine += rank.dataset.seen
            read.append(mine)
        ids = [read[q % len(read)][q // len(read)] for q in range(sum(map(len, read)))]
        assert micro_batch.step_count == len(ids)
        yield ids
    for run in runs:
        if stop_after is None:
            assert next(run, None) is None  # the end of the epoch, on every rank at once
        run.close()


@pytest.mark.proves(
    "Every sample once per epoch, in the same order, N in 1, 2, 7, 96, 1001 and W in 1, 2, 3, 4, 8, "
    "also across a resume 4 -> 2 -> 3",
    limits="ids seen by the dataset; ranks in one process",
)
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("n", SIZES)
def test_each_sample_once_per_epoch_in_the_same_order_at_every_world_size(n: int, accumulate: int) -> None:
    expected = [Permutation(n, 3, epoch)[i] for epoch in (0, 1) for i in range(n)]
    for world_size in WORLDS:
        loaders = ranks_of(n, world_size, accumulate=accumulate)
        order = [i for _ in (0, 1) for ids in trained_steps(loaders) for i in ids]
        assert order == expected
        assert sorted(order[:n]) == list(range(n))
        assert [(rank.epoch, rank.step) for rank in loaders] == [(2, 0)] * world_size


@pytest.mark.parametrize("n", SIZES)
def test_resume_at_other_world_sizes_keeps_the_order(n: int) -> None:
    state: dict[str, Any] | None = None
    order: list[int] = []
    for world_size, steps in [(4, 2), (2, 3), (3, None)]:
        loaders = ranks_of(n, world_size)
        if state is not None:
            for rank in loaders:
                rank.load_state_dict(json.loads(json.dumps(state)))
        order += [i for ids in trained_steps(loaders, steps) for i in ids]
        states = [rank.state_dict() for rank in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        if state["samples_in_epoch"] == 0:
            break
    assert order == [Permutation(n, 3, 0)[i] for i in range(n)]
    assert (state["epoch"], state["samples_total"]) == (1, n)


def test_accumulation_splits_a_ranks_samples_into_consecutive_parts() -> None:
    whole = ExactLoader(Recorded(50), 20, rank=1, world_size=2)
    split = ExactLoader(Recorded(50), 20, rank=1, world_size=2, accumulate=4)
    micro_batches = list(split.micro_batches())
    assert [micro_batch.count for micro_batch in micro_batches] == [3, 3, 2, 2, 3, 3, 2, 2, 2, 1, 1, 1]
    assert [micro_batch.step for micro_batch in micro_batches] == [0] * 4 + [1] * 4 + [2] * 4
    assert [micro_batch.samples_in_epoch for micro_batch in micro_batches] == [20] * 4 + [40] * 4 + [50] * 4
    assert [micro_batch.step_count for micro_batch in micro_batches][::4] == [20, 20, 10]
    ids = [i for micro_batch in micro_batches for i in micro_batch.batch.tolist()]
    assert ids == [i for batch in whole for i in batch.tolist()]
    assert ids == [
        i
        for batch in ExactLoader(Recorded(50), 20, rank=1, world_size=2, accumulate=4)
        for i in batch.tolist()
    ]


@pytest.mark.parametrize("rank", [0, 2])
def test_the_length_is_the_number_of_batches_of_a_plain_loop(rank: int) -> None:
    one = ExactLoader(Recorded(50), 20, rank=rank, world_size=3, accumulate=4)
    assert len(one) == len(list(iter(one))) == 12
    assert one.steps_per_epoch == 3


def test_position_in_the_middle_of_an_accumulated_step_is_the_step_s_beginning() -> None:
    one = ExactLoader(Recorded(50), 20, accumulate=2)
    run = one.micro_batches()
    next(run)
    assert one.samples_in_epoch == 0
    next(run)
    assert one.samples_in_epoch == 20


def test_a_plain_loop_reads_epochs_that_advance_by_themselves() -> None:
    one = ExactLoader(Recorded(10), 4)
    assert len(one) == 3
    places = [(one.epoch, one.step, one.samples_in_epoch, len(batch)) for _ in range(2) for batch in one]
    assert places == [(0, 1, 4, 4), (0, 2, 8, 4), (0, 3, 10, 2), (1, 1, 4, 4), (1, 2, 8, 4), (1, 3, 10, 2)]
    assert (one.epoch, one.step, one.samples_in_epoch) == (2, 0, 0)


def test_iterating_again_after_a_break_continues_the_epoch() -> None:
    one = ExactLoader(Recorded(10), 4, shuffle=False)
    for _ in one:
        break
    assert [batch.tolist() for batch in one] == [[4, 5, 6, 7], [8, 9]]
    for _ in one:
        if one.step == 3:
            break
    assert (one.epoch, one.step) == (2, 0)
    assert next(iter(one)).tolist() == [0, 1, 2, 3]
    assert one.epoch == 2


@pytest.mark.proves(
    "The saved position is that of the trained samples, not of what loader workers have prefetched",
)
def test_the_position_does_not_include_prefetched_batches() -> None:
    one = ExactLoader(Recorded(64), 4, workers=2)
    for _ in one:
        if one.step == 3:
            break
    state = one.state_dict()
    assert (state["epoch"], state["samples_in_epoch"], state["samples_total"]) == (0, 12, 12)
    other = ExactLoader(Recorded(64), 4)
    other.load_state_dict(state)
    assert next(iter(other)).tolist() == [Permutation(64)[i] for i in range(12, 16)]


def test_inside_the_loop_the_last_batch_is_the_end_of_its_epoch_and_after_it_the_next_begins() -> None:
    one = ExactLoader(Recorded(10), 4)
    for _ in one:
        state = one.state_dict()
    assert (state["epoch"], state["samples_in_epoch"], state["samples_total"]) == (0, 10, 10)
    after = one.state_dict()
    assert (after["epoch"], after["samples_in_epoch"], after["samples_total"]) == (1, 0, 10)


def test_resumed_at_the_end_of_an_epoch_its_loop_is_empty_and_the_next_epoch_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = ExactLoader(Recorded(10), 4, shuffle=False)
    one.seek(4, 10)
    assert (one.epoch, one.step) == (4, 3)
    assert one.state_dict()["samples_in_epoch"] == 10
    assert list(one) == []
    assert "epoch 5 was complete at the save" in caplog.text
    assert (one.epoch, one.step) == (5, 0)
    assert [batch.tolist() for batch in one] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_a_break_at_the_last_batch_ends_the_epoch() -> None:
    one = ExactLoader(Recorded(4), 4)
    for _ in one:
        break
    assert (one.epoch, one.step, one.state_dict()["samples_in_epoch"]) == (1, 0, 0)
    assert [len(next(iter(one))) for _ in range(3)] == [4, 4, 4]


def test_a_position_at_an_epoch_s_end_is_one_of_every_batch_size() -> None:
    saved = ExactLoader(Recorded(10), 4)
    saved.seek(1, 10)
    other = ExactLoader(Recorded(10), 3)
    other.load_state_dict(saved.state_dict())
    assert list(other) == []
    assert other.epoch == 2


@pytest.mark.parametrize("killed_after", range(1, 10))
def test_a_resume_runs_what_follows_an_epoch_exactly_once(killed_after: int) -> None:
    """The README's loop with StepLR after each epoch, saved after every step and resumed."""

    def run(state: dict[str, Any] | None, stop_after: int | None) -> tuple[dict[str, Any], list[float]]:
        data = ExactLoader(Recorded(10), 4)
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        rates = []
        if state is not None:
            data.load_state_dict(state["data"])
            schedule.load_state_dict(state["schedule"])
            optimizer.load_state_dict(state["optimizer"])
        for _epoch in range(data.epoch, 3):
            for _batch in data:
                optimizer.step()
                rates.append(optimizer.param_groups[0]["lr"])
                state = {
                    "data": data.state_dict(),
                    "schedule": dict(schedule.state_dict()),
                    "optimizer": optimizer.state_dict(),
                }
                if len(rates) == stop_after:
                    return json.loads(json.dumps(state)), rates
            schedule.step()
        return {}, rates

    whole = run(None, None)[1]
    assert whole == [1.0] * 3 + [0.5] * 3 + [0.25] * 3
    state, before = run(None, killed_after)
    assert before + run(state, None)[1] == whole


def test_a_position_saved_before_as_the_start_of_the_next_epoch_loads_as_that() -> None:
    one = ExactLoader(Recorded(10), 4, shuffle=False)
    one.load_state_dict({**one.state_dict(), "epoch": 1, "samples_in_epoch": 0, "samples_total": 10})
    assert (one.epoch, one.step) == (1, 0)
    assert next(iter(one)).tolist() == [0, 1, 2, 3]


def test_seek_is_as_fast_in_a_huge_dataset() -> None:
    class Huge(Recorded):
        deterministic_items = True

    one = ExactLoader(Huge(10**12), 64, rank=1, world_size=3)
    one.seek(7, 64 * 10**9)
    assert next(iter(one)).tolist() == [Permutation(10**12, 0, 7)[64 * 10**9 + q] for q in range(1, 64, 3)]


@pytest.mark.parametrize(
    ("n", "options", "words"),
    [
        (41, {}, r"n was 40 .* 41 now"),
        (40, {"seed": 1}, r"seed was 0 .* 1 now"),
        (40, {"dataset_id": "b"}, r"dataset_id was 'a' .* 'b' now"),
        (40, {"shuffle": False}, r"shuffle was True .* False now"),
        (40, {"batch_size": 5}, r"batch_size was 4 .* 5 now"),
    ],
)
def test_a_state_of_other_data_is_refused_with_both_values(
    n: int, options: dict[str, Any], words: str
) -> None:
    saved = ExactLoader(Recorded(40), 4, dataset_id="a")
    saved.seek(0, 8)
    other = ExactLoader(Recorded(n), **{"batch_size": 4, "dataset_id": "a", **options})
    with pytest.raises(CheckpointError, match=words) as caught:
        other.load_state_dict(saved.state_dict())
    assert caught.value.exit_code == ExitCode.CONFIG
    assert (other.epoch, other.step) == (0, 0)


def test_another_batch_size_is_accepted_between_steps() -> None:
    saved = ExactLoader(Recorded(40), 4)
    saved.seek(0, 16)
    other = ExactLoader(Recorded(40), 8)
    other.load_state_dict(saved.state_dict())
    assert (other.step, other.samples_in_epoch) == (2, 16)


@pytest.mark.parametrize(
    "change", [{"epoch": -1}, {"samples_in_epoch": "8"}, {"samples_in_epoch": 44}, {"n": None}]
)
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    one = ExactLoader(Recorded(40), 4)
    state = one.state_dict() | change
    with pytest.raises(CheckpointError):
        one.load_state_dict(state)
    with pytest.raises(CheckpointError, match="has no 'n'"):
        one.load_state_dict({})


def test_a_stale_iterator_is_refused() -> None:
    one = ExactLoader(Recorded(40), 4)
    first = iter(one)
    next(first)
    next(iter(one))
    with pytest.raises(UsageError, match="another iteration"):
        next(first)
    second = iter(one)
    next(second)
    one.seek(0, 0)
    with pytest.raises(UsageError, match="seek"):
        next(second)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class NoLength(Dataset[int]):
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        (Stream(), {}, "Stream gives no samples by index"),
        (NoLength(), {}, "NoLength has no length"),
        (Recorded(0), {}, "Recorded is empty"),
        (Recorded(3), {"batch_size": 0}, "batch_size=0"),
        (Recorded(3), {"batch_size": 2.5}, "batch_size=2.5"),
        (Recorded(3), {"workers": -1}, "workers=-1"),
        (Recorded(3), {"accumulate": 0}, "accumulate=0"),
        (Recorded(3), {"rank": 2, "world_size": 2}, "rank 2 is not in 0 .. 1"),
        (Recorded(3), {"seed": -1}, "seed -1"),
    ],
)
def test_datasets_and_numbers_that_do_not_work_are_refused_at_once(
    dataset: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        ExactLoader(dataset, **{"batch_size": 4, **options})


def test_more_ranks_than_samples_in_a_step_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    ExactLoader(Recorded(9), 2, rank=0, world_size=4)
    assert "batch_size 2 is smaller than 4 ranks" in caplog.text


def test_a_plain_loop_sets_the_batch_weight_and_an_evaluation_inside_restores_it() -> None:
    box = BatchWeight()
    train = ExactLoader(Recorded(10), 4, rank=2, world_size=3, batch_weight=box)
    held_out = ExactLoader(Recorded(2), 2, rank=2, world_size=3, batch_weight=box, dataset_id="e")
    seen = []
    for _ in train:
        seen.append((box.local, box.total, box.weight(3)))
        inside = [(box.local, box.total) for _ in held_out]
        assert inside == [(0, 2)]
        assert (box.local, box.total) == seen[-1][:2]
    assert seen == [(1, 4, 0.75), (1, 4, 0.75), (0, 2, 0.0)]
    assert (box.local, box.total, box.weight(3)) == (0, 0, 1.0)
    for _ in train:
        break
    assert box.weight(3) == 1.0


def test_without_a_run_the_public_function_is_one_process_with_seed_0() -> None:
    one = loader(Recorded(5), 2)
    assert (one.rank, one.world_size, one.seed, one.batch_weight) == (0, 1, 0, None)
    assert [i for batch in one for i in batch.tolist()] == Permutation(5)[torch.arange(5).numpy()].tolist()


def test_a_custom_collate_and_torch_s_own_are_used() -> None:
    pairs = TensorDataset(torch.arange(6.0), torch.arange(6))
    x, y = next(iter(ExactLoader(pairs, 4, shuffle=False)))
    assert torch.equal(x, torch.arange(4.0))
    assert torch.equal(y, torch.arange(4))
    assert next(iter(ExactLoader(Recorded(6), 4, shuffle=False, collate_fn=tuple))) == (0, 1, 2, 3)


def test_reads_in_the_rank_itself_are_marked_in_a_trace() -> None:
    loader = ExactLoader(list(range(6)), 2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        list(loader)
    [waits] = [each for each in profiler.key_averages() if each.key == "data wait"]
    assert waits.count >= 3
