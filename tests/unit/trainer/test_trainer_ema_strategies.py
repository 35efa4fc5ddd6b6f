"""EMA over sharded weights: evaluations see the averages, and a resume at another size goes on with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from block_cases import config, plain

import dist_train as dt
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.testing import run_ranks
from dist_train.trainer.run_training import train

EMA = (
    "trainer.callbacks=[{target: ema, args: {decay: 0.5}}]",
    "data.evaluation={target: 'nonfinite_cases:Line', args: {samples: 9}}",
    "trainer.accumulate=1",
    "optimizer={target: 'torch.optim:SGD', args: {lr: 0.05}}",
    "model=block_cases:plain",
)
HSDP = "{name: hsdp, options: {replicate: 2}}"


def averaged(folder: Path, strategy: str, epochs: int = 2) -> dict[str, Any]:
    """The losses of the evaluations, and the averages of the newest checkpoint, on each rank."""
    with dt.init(seed=1, timeout_s=60) as run:
        train(config(f"strategy={strategy}", *EMA, f"trainer.epochs={epochs}"), run, RunDir(folder))
        model = plain()
        newest = sorted(RunDir(folder).checkpoints.glob("step-*"))[-1]
        dt.checkpoint.load_model(newest, model, entry="ema")
    records = read_metrics(RunDir(folder).metrics)
    return {
        "losses": [one["loss"] for one in records if one["kind"] == "eval"],
        "averages": torch.cat([value.flatten() for value in model.state_dict().values()]).tolist(),
    }


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_ranks(averaged, 1, 60, args=(tmp_path_factory.mktemp("alone"), "ddp"))[0]  # type: ignore[no-any-return]


def compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(expected["losses"], rel=1e-4)
    assert found["averages"] == pytest.approx(expected["averages"], rel=1e-4, abs=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.multiprocess
@pytest.mark.parametrize(("ranks", "strategy"), [(2, "ddp"), (3, "fsdp"), (4, HSDP)])
def test_the_averages_are_those_of_one_process(
    tmp_path: Path, alone: dict[str, Any], ranks: int, strategy: str
) -> None:
    for found in run_ranks(averaged, ranks, 60, args=(tmp_path, strategy)):
        compare(found, alone)


@pytest.mark.proof
@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("first", "then"), [((2, "ddp"), (3, "fsdp")), ((2, "fsdp"), (3, "fsdp")), ((4, HSDP), (2, "ddp"))]
)
def test_a_resume_elsewhere_goes_on_with_the_averages(
    tmp_path: Path, alone: dict[str, Any], first: tuple[int, str], then: tuple[int, str]
) -> None:
    run_ranks(averaged, first[0], 60, args=(tmp_path, first[1], 1))
    for found in run_ranks(averaged, then[0], 60, args=(tmp_path, then[1])):
        compare(found, alone)
