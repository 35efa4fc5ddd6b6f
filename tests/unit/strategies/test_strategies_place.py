"""A strategy may give several ranks the same data: samples, random numbers, units and metrics follow it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from twins_strategy import Twins

import dist_train as dt
from dist_train.config.load import load_text
from dist_train.data import DistributedSampler
from dist_train.distributed import current
from dist_train.distributed.place import Place
from dist_train.errors import ConfigError, UsageError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.strategies.base import StrategyOptions, place_of
from dist_train.strategies.ddp import Ddp
from dist_train.testing import run_ranks
from dist_train.testing.contracts.strategy_contract import check_places
from dist_train.trainer import LossOutput, train

pytestmark = pytest.mark.usefixtures("twins")

ROWS = torch.arange(1.0, 12.0, dtype=torch.float64)


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return ROWS[index : index + 1] / 11


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return (row.reshape(1) / 11 for row in ROWS)

    def __len__(self) -> int:
        return len(ROWS)


def _loop(meeting: str, strategy: str, data: Any) -> list[Any]:
    with dt.init(seed=1, device="cpu", init_method=meeting, timeout_s=20) as run:
        plain = nn.Linear(1, 1, dtype=torch.float64)
        nn.init.constant_(plain.weight, 0.5)
        nn.init.constant_(plain.bias, 0.25)
        model = dt.prepare(plain, strategy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen, weights, means = [], [], []
        for epoch in range(2):
            for batch in dt.loader(data, 4):
                optimizer.zero_grad()
                loss = (model(batch) - 1).square()
                if epoch:
                    run.backward(loss.sum(), units=len(batch))
                else:
                    loss.mean().backward()
                optimizer.step()
                seen.append([round(float(x) * 11) for x in batch])
                weights.append(float(plain.weight.detach()))
                # As a stage of a pipeline, which has no loss.
                own = loss.detach().sum() if run.place.counts else 100.0
                means.append(run.mean(own, count=len(batch)))
        sampler = DistributedSampler(range(8), shuffle=False)
        rows = run.gather(torch.tensor([float(run.place.data_rank)])).tolist()
        return [seen, weights, means, rows, float(torch.rand(1)), list(sampler)]


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize("data", [Rows(), Stream()])
def test_a_loop_of_ones_own_trains_as_with_one_rank_for_each_share(data: Any, ranks: Any) -> None:
    one = ranks(1, _loop, "twins", data)[0]
    twins = ranks(2, _loop, "twins", data)
    four = ranks(4, _loop, "twins", data)
    two = ranks(2, _loop, "ddp", data)
    assert [rank[0] for rank in twins] == [one[0]] * 2, "both read every sample"
    assert [rank[0] for rank in four] == [two[0][0], two[0][0], two[1][0], two[1][0]]
    for found, expected in ((twins, one), (four, two[0])):
        for rank in found:
            assert rank[1] == pytest.approx(expected[1], rel=1e-12)
            assert rank[2] == pytest.approx(expected[2], rel=1e-12)
            assert rank[3] == expected[3], "each share's rows once"
    for value in (4, 5):  # random numbers, the sampler's indices
        assert [rank[value] for rank in four] == [two[i][value] for i in (0, 0, 1, 1)]


@pytest.mark.multiprocess
def test_a_loader_that_was_made_before_for_other_shares_is_refused(ranks: Any) -> None:
    def late(meeting: str) -> str:
        with dt.init(seed=1, device="cpu", init_method=meeting, timeout_s=20):
            dt.loader(Rows(), 4)
            with pytest.raises(UsageError, match="of 2 of the data, and the strategy") as caught:
                dt.prepare(nn.Linear(1, 1), "twins")
            return str(caught.value.hint)

    assert "before dt.loader" in ranks(2, late)[0]


class Tokens:
    """A task of varying units with dropout: row i counts i units, and has a metric."""

    units_vary = True

    def units(self, batch: torch.Tensor) -> int:
        return int(batch.sum() * 11)

    def loss(self, model: nn.Module, batch: torch.Tensor) -> LossOutput:
        errors = (model(batch.float()) - 1).square()
        run = current()
        assert run is not None
        metrics = {"error": (errors.detach().sum(), torch.tensor(float(len(batch))))}
        return LossOutput(errors.sum(), metrics if run.place.counts else {})


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))


CONFIG = """
model: test_strategies_place:noisy
data:
  train: test_strategies_place:Rows
  evaluation: test_strategies_place:Rows
  batch_size: 4
task: test_strategies_place:Tokens
optimizer: {target: torch.optim:SGD, args: {lr: 0.1}}
trainer: {epochs: 2, log_every_steps: 1}
"""


def _train(folder: str, strategy: str) -> None:
    with dt.init(seed=0, device="cpu", timeout_s=30) as run:
        text = f"{CONFIG}strategy: {{name: {strategy}}}\n"
        train(load_text(text, "run.yaml").config, run, RunDir(Path(folder)))


def _records(folder: Path, strategy: str, n: int) -> list[list[float]]:
    folder.mkdir()
    run_ranks(_train, n, 60.0, args=(str(folder), strategy))
    found = read_metrics(RunDir(folder).metrics)
    return [[row.get("loss", 0.0), row.get("error", 0.0), row.get("grad_norm", 0.0)] for row in found]


@pytest.mark.multiprocess
def test_the_trainer_counts_units_losses_and_metrics_of_each_share_once(tmp_path: Path) -> None:
    two = _records(tmp_path / "ddp", "ddp", 2)
    four = _records(tmp_path / "twins", "twins", 4)
    assert len(four) == len(two) >= 8
    for found, expected in zip(four, two, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_contract_asks_for_one_rank_that_counts_for_each_share() -> None:
    class Uncounted(Twins):
        def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
            return replace(super().place(options, rank, world_size), counts=True)

    class Unlike(Twins):
        def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
            return Place((("replicate", world_size),), 0, 1 + rank)

    check_places(Ddp())
    check_places(Twins(), (1, 2, 4))
    with pytest.raises(AssertionError, match="one rank counts for each data coordinate"):
        check_places(Uncounted(), (2,))
    with pytest.raises(AssertionError, match="unlike meshes"):
        check_places(Unlike(), (2,))


def test_a_mesh_that_does_not_multiply_to_the_world_size_is_refused() -> None:
    class Odd(Ddp):
        def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
            return Place((("replicate", 2), ("shard", 2)), 0, 2)

    with pytest.raises(ConfigError, match="mesh replicate 2 x shard 2 has 4 ranks, and there are 3"):
        place_of(Odd(), Odd().Options(), 0, 3)
    assert place_of(Ddp(), Ddp().Options(), 1, 3) == Place.of_replica(1, 3)


PAIR = (("replicate", 2),)


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([Place(PAIR, 0, 1), Place(PAIR, 0, 1)], "2 of 2 ranks count for share 0 of 1"),
        ([Place(PAIR, 0, 2, False), Place(PAIR, 1, 2)], "0 of 2 ranks count for share 0 of 2"),
        ([Place(PAIR, 0, 4), Place(PAIR, 1, 4)], "0 of 2 ranks count for share 2 of 4"),
        ([Place(PAIR, 0, 2), Place(PAIR, 0, 2, False)], "0 of 2 ranks count for share 1 of 2"),
        ([Place(PAIR, 0, 1), Place(PAIR, 0, 2)], "unlike meshes: rank 1"),
        ([Place(PAIR, 0, 2), Place((("shard", 2),), 1, 2)], "unlike meshes: rank 1"),
        ([None, None], "`place` of Wrong returns None"),
    ],
)
def test_places_that_would_leave_out_samples_or_count_them_twice_are_refused_on_all_ranks(
    places: list[Any], said: str
) -> None:
    class Wrong(Ddp):
        def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
            return places[rank]

    for rank in range(2):
        with pytest.raises(ConfigError, match=said) as caught:
            place_of(Wrong(), Wrong().Options(), rank, 2)
        assert "lace" in str(caught.value.hint)


def test_a_coordinate_is_a_whole_number() -> None:
    for make in (
        lambda: Place(PAIR, 0.0, 2),  # type: ignore[arg-type]
        lambda: Place((("replicate", True),), 0, 2),
    ):
        with pytest.raises(ConfigError, match="not a whole number"):
            make()


@pytest.mark.multiprocess
def test_a_checkpoint_that_was_loaded_before_for_another_place_is_refused(ranks: Any, tmp_path: Path) -> None:
    def late(meeting: str) -> tuple[str, str]:
        with dt.init(seed=1, device="cpu", init_method=meeting, timeout_s=20):
            model = nn.Linear(1, 1)
            manager = dt.checkpoint.CheckpointManager(tmp_path)
            manager.save(1, {"model": model})
            manager.load_latest({"model": model})
            with pytest.raises(UsageError) as caught:
                dt.prepare(model, "twins")
            return str(caught.value.cause), str(caught.value.hint)

    for cause, hint in ranks(2, late):
        assert "a checkpoint" in cause
        assert "before dt.loader(...), load_latest()" in hint
