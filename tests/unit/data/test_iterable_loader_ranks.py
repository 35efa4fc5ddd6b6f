"""IterableLoader on several ranks: they share each step, resume as others, and refuse unlike streams."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from iterable_datasets import Count, Shuffled, Stateful
from torch.utils.data import IterableDataset

import dist_train as dt
from dist_train.checkpoint.manager import CheckpointManager
from dist_train.data.streams.iterable_loader import IterableLoader
from dist_train.data.streams.stream_agreement import STEPS_COMPARED
from dist_train.testing import RanksFailed, run_ranks


def trained(
    kind: Any, n: int, folder: str, stop_after: int | None = None
) -> list[tuple[list[int], int, int]]:
    """Each step's samples of this rank, and both numbers of its weight; saved in `folder` at the end."""
    with dt.init(device="cpu", seed=5) as run:
        one = dt.loader(kind(n), 4, workers=2 * (run.rank % 2))
        manager = CheckpointManager(folder, control=run.control)
        manager.load_latest({"loader": one})
        steps = []
        for batch in one:
            weight = run.batch_weight
            steps.append((batch.tolist()[: weight.local], weight.local, weight.total))
            if len(steps) == stop_after:
                break
        manager.save(one.step, {"loader": one})
        return steps


def samples_of(answers: list[list[tuple[list[int], int, int]]]) -> list[list[int]]:
    """Each step's samples over all ranks; checks that the ranks agree on steps and weights."""
    assert len({len(answer) for answer in answers}) == 1
    steps = []
    for parts in zip(*answers, strict=True):
        assert {total for _, _, total in parts} == {sum(local for _, local, _ in parts)}
        steps.append(sorted(chain(*(samples for samples, _, _ in parts))))
    return steps


@pytest.mark.parametrize(("kind", "before", "after"), [(Shuffled, 2, 3), (Stateful, 3, 2), (Count, 3, 1)])
def test_ranks_share_each_step_and_resume_at_another_world_size(
    kind: Any, before: int, after: int, tmp_path: Path
) -> None:
    whole = [sorted(batch.tolist()) for batch in IterableLoader(kind(45), 4, seed=5)]
    done = samples_of(run_ranks(trained, before, args=(kind, 45, str(tmp_path), 5)))
    rest = samples_of(run_ranks(trained, after, args=(kind, 45, str(tmp_path))))
    assert done + rest == whole


def killed(folder: str, kill_at: int | None) -> None:
    """Save after each step and write down what it trained on; all ranks are killed after step `kill_at`."""
    with dt.init(device="cpu", seed=5) as run:
        one = dt.loader(Shuffled(45), 4, workers=2)
        manager = CheckpointManager(f"{folder}/checkpoints", control=run.control)
        manager.load_latest({"loader": one})
        for batch in one:
            manager.save(one.step, {"loader": one})
            with Path(folder, f"samples-{run.rank}.txt").open("a") as file:
                file.writelines(f"{value}\n" for value in batch.tolist()[: run.batch_weight.local])
            if one.step == kill_at:
                run.control.barrier()
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.proves(
    "An iterable data set: each sample once, also killed at W = 2 and W = 1 and resumed at W = 3",
    limits="every rank reads the whole stream; the resume reads and skips",
)
def test_a_killed_run_goes_on_at_another_world_size_without_missing_a_sample(tmp_path: Path) -> None:
    for world_size, kill_at in [(2, 3), (1, 7)]:
        with pytest.raises(RanksFailed):
            run_ranks(killed, world_size, args=(str(tmp_path), kill_at))
    run_ranks(killed, 3, args=(str(tmp_path), None))
    written = [int(line) for path in tmp_path.glob("*.txt") for line in path.read_text().split()]
    assert sorted(written) == list(range(45))


class PerRank(IterableDataset[int]):
    """What differs between ranks: the order, the length, or an error on one of them."""

    how = ""

    def __iter__(self) -> Iterator[int]:
        from dist_train.distributed.run import current

        run = current()
        rank = 0 if run is None else run.rank
        length = 40 + 4 * rank * (self.how == "length")
        for value in range(length):
            if self.how == "error" and rank == 1 and value == 20:
                raise OSError("stale file handle")
            yield value * 2 + rank if self.how == "order" and value >= 20 else value


def unlike(how: str) -> None:
    with dt.init(device="cpu") as run:
        data = PerRank()
        data.how = how
        for batch in dt.loader(data, 4):
            run.control.sum([float(batch.sum())])  # as the gradients' all-reduce: both ranks or none


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("order", "different samples from step 3 of epoch 0 on"),
        ("length", "different numbers of samples from step 7 of epoch 0 on"),
        ("error", "rank 1 cannot read its data set"),
    ],
)
@pytest.mark.proves(
    "Streams that differ between ranks (order, length, an error on one) stop all ranks with an error",
    limits="W = 2; content is compared by each step's first sample",
)
def test_streams_that_differ_are_refused_on_all_ranks_and_nobody_waits(how: str, words: str) -> None:
    with pytest.raises(RanksFailed, match=words) as failed:
        run_ranks(unlike, 2, args=(how,), timeout_s=20)
    assert sorted(failed.value.tracebacks) == [0, 1]


def test_comparisons_are_few(tmp_path: Path) -> None:
    def gathers() -> int:
        with dt.init(device="cpu") as run:
            calls = []
            gather = run.control.all_gather
            run.control.all_gather = lambda value: calls.append(value) or gather(value)  # type: ignore
            assert len(list(dt.loader(Count(400), 4))) == 100
            return len(calls)

    assert run_ranks(gathers, 2) == [3 + -(-93 // STEPS_COMPARED)] * 2
