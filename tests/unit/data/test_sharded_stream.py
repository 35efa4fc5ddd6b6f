"""ShardedStream: each sample of every shard once, in steps that do not depend on the number of ranks."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset

import dist_train as dt
from dist_train.data.exact_loader import ExactLoader
from dist_train.data.loader import loader
from dist_train.data.streams.sharded_stream import ShardedStream
from dist_train.errors import CheckpointError, ConfigError
from dist_train.testing import RanksFailed, run_ranks

COUNTS = [7, 0, 12, 1, 5, 31, 4, 9]
N = sum(COUNTS)


class Numbers:
    """Reads made-up shards: shard k has COUNTS[k] samples 1000 * k + i. Records what it opens and reads."""

    def __init__(self) -> None:
        self.opened: list[int] = []
        self.read = 0

    def __call__(self, shard: int) -> Iterator[int]:
        self.opened.append(shard)
        for index in range(COUNTS[shard]):
            self.read += 1
            yield 1000 * shard + index


ALL = sorted(1000 * shard + index for shard, count in enumerate(COUNTS) for index in range(count))


def flat(parts: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def stream(**options: Any) -> ShardedStream:
    return ShardedStream(range(len(COUNTS)), Numbers(), **{"counts": COUNTS, "interleave": 4, **options})


def steps_of(world_size: int, state: dict[str, Any] | None = None, steps: int | None = None) -> Any:
    """Sets of samples of each step over all ranks, and the state after them; ranks are in this process."""
    loaders = [
        ExactLoader(stream(), 8, seed=3, rank=rank, world_size=world_size) for rank in range(world_size)
    ]
    for one in loaders:
        if state is not None:
            one.load_state_dict(state)
    runs = [one.micro_batches() for one in loaders]
    taken = []
    while steps is None or len(taken) < steps:
        parts = [next(run, None) for run in runs]
        if parts[0] is None:
            assert parts == [None] * world_size  # all ranks end at the same step
            break
        samples = [value for part in parts for value in part.batch.tolist()[: part.count]]
        assert len(samples) == parts[0].step_count
        taken.append(sorted(samples))
    return taken, loaders[0].state_dict()


@pytest.mark.proves(
    "Shards: every sample once per epoch, in the same steps at W in 1, 2, 3, 5; a resume across W in 1, 2, 3 "
    "gives exactly the rest",
    limits="the number of samples of each shard is known; ranks in one process",
)
def test_each_sample_once_in_the_same_steps_at_every_world_size() -> None:
    one, _ = steps_of(1)
    assert sorted(flat(one)) == ALL
    assert [len(step) for step in one] == [8] * (N // 8) + [N % 8]
    assert flat(one) != ALL
    for world_size in (2, 3, 5):
        assert steps_of(world_size)[0] == one


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resume_gives_exactly_the_rest_at_another_world_size(before: int, after: int) -> None:
    whole, _ = steps_of(1)
    done, state = steps_of(before, steps=4)
    rest, _ = steps_of(after, json.loads(json.dumps(state)))
    assert done + rest == whole


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    one = ExactLoader(stream(), 8, seed=3)
    first, second = [batch.tolist() for batch in one], [batch.tolist() for batch in one]
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second)) == ALL
    assert [batch.tolist() for batch in ExactLoader(stream(), 8, seed=4)] != first


def test_without_shuffle_the_order_is_that_of_the_list() -> None:
    plain = ExactLoader(stream(interleave=None), 8, shuffle=False)
    assert torch.cat(list(plain)).tolist() == ALL


def test_workers_give_the_same_batches() -> None:
    here = [batch.tolist() for batch in ExactLoader(stream(), 8, seed=3)]
    one = ExactLoader(stream(), 8, seed=3, workers=2)
    next(iter(one))  # opens shards in the workers only
    one.seek(0, 0)
    assert [batch.tolist() for batch in one] == here


def test_workers_do_not_share_the_file_offsets_of_their_parent(tmp_path: Path) -> None:
    write_lines(tmp_path, 4, 50, width=1000)  # larger than what a file reads ahead
    data = ShardedStream(str(tmp_path / "*.txt"), transform=int)
    first = data[3], data[60]  # opened here, then forked
    assert first == (3, 60)
    batches = [batch.tolist() for batch in ExactLoader(data, 16, seed=1, workers=2)]
    assert sorted(flat(batches)) == list(range(200))
    assert batches == [batch.tolist() for batch in ExactLoader(data, 16, seed=1)]


def test_a_rank_opens_only_its_own_shards_and_passes_each_once() -> None:
    """interleave 4 and batch_size 8 are multiples of 2 ranks: half of what there is, plus cut shards."""
    data = stream(shuffle_buffer=4)
    one = ExactLoader(data, 8, seed=3, rank=1, world_size=2)
    for _ in one:
        pass
    reader = data.reader
    assert isinstance(reader, Numbers)
    assert len(reader.opened) <= len(COUNTS) // 2 + 4
    assert reader.read < 0.8 * N


def test_what_ranks_read_twice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dist_train")
    stream().log_reading(2, 8, shuffle=True)
    assert not caplog.records
    stream().log_reading(6, 8, shuffle=True)
    assert "each shard is read by 3 of 6 ranks" in caplog.text


def test_reading_out_of_order_is_right_and_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    write_lines(tmp_path, 1, 3000)
    data = ShardedStream(str(tmp_path / "*.txt"), transform=int)
    assert len(set(ExactLoader(Subset(data, list(range(3000))), 600))) == 5
    assert "shards are read out of order" in caplog.text


def test_random_draws_of_a_transform_are_keyed_by_sample() -> None:
    def augmented(sample: int) -> tuple[int, float]:
        return sample, float(torch.rand(()))

    def drawn(world_size: int) -> dict[int, float]:
        found: dict[int, float] = {}
        for rank in range(world_size):
            one = ExactLoader(stream(transform=augmented), 8, rank=rank, world_size=world_size)
            for part in one.micro_batches():
                if part.count:
                    found |= dict(zip(part.batch[0].tolist(), part.batch[1].tolist(), strict=True))
        return found

    before = torch.get_rng_state()
    assert drawn(1) == drawn(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("counts", [[7, 0, 12, 1, 5, 30, 4, 9], [7, 0, 12, 1, 5, 32, 4, 9]])
def test_a_shard_that_has_changed_is_refused(counts: list[int]) -> None:
    one = ExactLoader(stream(counts=counts), 8)
    with pytest.raises(ConfigError, match=r"shard 5 has (more than )?3\d samples; 3\d were counted"):
        for _ in one:
            pass


def test_a_position_in_other_shards_or_another_order_is_refused() -> None:
    state = steps_of(1, steps=2)[1]
    for other, name in [
        (stream(interleave=2), "interleave was 4"),
        (stream(shuffle_buffer=2), "shuffle_buffer was 256"),
        (stream(counts=[*COUNTS[:-1], 8]), "n was"),
    ]:
        with pytest.raises(CheckpointError, match=name):
            ExactLoader(other, 8, seed=3).load_state_dict(state)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    for arguments, words in [
        ({"shards": str(tmp_path / "*.tar")}, "no shards"),
        ({"shards": ["a.txt", "b.txt", "a.txt"]}, "a.txt is listed twice"),
        ({"shards": ["a.bin"]}, "no reader is known"),
        ({"shards": ["a.txt"], "counts": [1, 2]}, "counts has 2 numbers for 1"),
        ({"shards": ["a.txt"], "interleave": 0}, "interleave=0"),
    ]:
        with pytest.raises(ConfigError, match=words):
            ShardedStream(**arguments)  # type: ignore[arg-type]


def test_open_shards_do_not_travel_by_pickle(tmp_path: Path) -> None:
    write_lines(tmp_path, 2, 5)
    data = ShardedStream(str(tmp_path / "*.txt"))
    assert data[6] == "6"
    assert pickle.loads(pickle.dumps(data))[6] == "6"


def write_lines(folder: Path, shards: int, lines: int, width: int = 1) -> None:
    for number in range(shards):
        first = number * lines
        text = "".join(f"{value:0{width}}\n" for value in range(first, first + lines))
        (folder / f"part-{number:03}.txt").write_text(text)


def trained_in_a_run(folder: str, index: str | None) -> tuple[list[int], list[tuple[int, int]]]:
    with dt.init(device="cpu") as run:
        data = ShardedStream(f"{folder}/*.txt", index=index, transform=int)
        one = dt.loader(data, 8, workers=run.rank)  # unlike numbers of workers change nothing
        taken, weights = [], []
        for batch in one:
            weights.append((run.batch_weight.local, run.batch_weight.total))
            taken += batch.tolist()[: run.batch_weight.local]
        return taken, weights


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_of_a_run_count_together_and_share_the_steps(tmp_path: Path, world_size: int) -> None:
    write_lines(tmp_path, 5, 9)
    answers = run_ranks(trained_in_a_run, world_size, args=(str(tmp_path), str(tmp_path / "index.json")))
    assert sorted(flat(taken for taken, _ in answers)) == list(range(45))
    totals = [[total for _, total in weights] for _, weights in answers]
    assert totals == [[8, 8, 8, 8, 8, 5]] * world_size
    index = json.loads((tmp_path / "index.json").read_text())
    assert [entry["samples"] for entry in index["shards"].values()] == [9] * 5


def unlike_lists(folder: str) -> None:
    with dt.init(device="cpu") as run:
        shards = sorted(Path(folder).glob("*.txt"), reverse=run.rank == 1)
        dt.loader(ShardedStream(shards), 8)


def damaged(folder: str) -> None:
    def read(shard: Any) -> Iterator[int]:
        if shard.name.startswith("part-001"):
            raise OSError("stale file handle")
        yield 1

    with dt.init(device="cpu"):
        dt.loader(ShardedStream(sorted(Path(folder).glob("*.txt")), read), 8)


@pytest.mark.parametrize(
    ("job", "words"),
    [(unlike_lists, "do not list the same shards"), (damaged, "cannot count shard .*part-001")],
)
def test_unlike_lists_and_damaged_shards_are_refused_on_all_ranks(
    tmp_path: Path, job: Any, words: str
) -> None:
    write_lines(tmp_path, 3, 2)
    with pytest.raises(RanksFailed, match=words) as failed:
        run_ranks(job, 2, args=(str(tmp_path),))
    assert sorted(failed.value.tracebacks) == [0, 1]


def test_an_index_is_used_until_a_shard_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(tmp_path, 3, 4)
    pattern, index = str(tmp_path / "*.txt"), tmp_path / "index.json"
    assert ShardedStream(pattern, index=index).counts == (4, 4, 4)
    loader(ShardedStream(pattern, index=index), 2)
    counted: list[str] = []
    monkeypatch.setattr(
        "dist_train.data.streams.shard_readers.LineReader.count",
        lambda _self, shard: counted.append(Path(shard).name) or 5,
    )
    assert ShardedStream(pattern, index=index).counts == (4, 4, 4)
    (tmp_path / "part-001.txt").write_text("1\n2\n3\n4\n5\n")
    assert ShardedStream(pattern, index=index).counts == (4, 5, 4)
    assert counted == ["part-001.txt"]
    index.write_text("not JSON")
    assert ShardedStream(pattern, index=index).counts == (5, 5, 5)
