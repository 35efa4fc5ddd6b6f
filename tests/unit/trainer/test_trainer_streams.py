"""A config run trains on shards and on an iterable data set as on any other, at every world size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from dist_train.config.load import load_text
from dist_train.data import ShardedStream
from dist_train.env import INJECT
from dist_train.errors import ConfigError
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.testing import RanksFailed, run_ranks
from dist_train.trainer.run_training import train

CONFIG = """
model: test_trainer_streams:slope
data:
  train: {target: "test_trainer_streams:KIND", args: {folder: FOLDER}}
  evaluation: {target: "test_trainer_streams:KIND", args: {folder: FOLDER}}
  batch_size: 8
  workers: 1
loss: mse
optimizer: {target: sgd, args: {lr: 0.05}}
trainer: {epochs: 2, log_every_steps: 1, accumulate: 2}
checkpoint: {every_steps: 3}
"""
SAMPLES = 45


def slope() -> nn.Module:
    return nn.Linear(1, 1).double()


def _sample(value: dict[str, float]) -> tuple[Tensor, Tensor]:
    x = torch.tensor([value["x"]], dtype=torch.float64)
    return x, x.cos()


def shards(folder: str) -> ShardedStream:
    return ShardedStream(f"{folder}/*.jsonl", transform=_sample, shuffle_buffer=4)


class Rows(IterableDataset[Any]):
    """The same samples without an index or shards."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[Any]:
        for path in sorted(Path(self.folder).glob("*.jsonl")):
            for line in path.read_text().splitlines():
                yield _sample(json.loads(line))


class Endless(Rows):
    __len__ = None  # type: ignore[assignment]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five shards of nine samples."""
    for number in range(5):
        values = torch.linspace(-1, 1, SAMPLES)[number::5].tolist()
        text = "\n".join(json.dumps({"x": value}) for value in values)
        (tmp_path / f"{number}.jsonl").write_text(text)
    return tmp_path


def _train(folder: str, run_dir: str, kind: str) -> None:
    import dist_train as dt

    Path(run_dir).mkdir(exist_ok=True)
    text = CONFIG.replace("KIND", kind).replace("FOLDER", folder)
    with dt.init(seed=0, device="cpu", timeout_s=30) as run:
        train(load_text(text, "stream.yaml").config, run, RunDir(Path(run_dir)))


def losses(folder: Path, name: str) -> list[float]:
    return [record["loss"] for record in read_metrics(RunDir(folder / name).metrics)]


@pytest.mark.proof
@pytest.mark.parametrize("kind", ["shards", "Rows"])
def test_two_ranks_killed_and_resumed_as_three_train_as_one_process(folder: Path, kind: str) -> None:
    run_ranks(_train, 1, args=(str(folder), str(folder / "one"), kind))
    fault = {INJECT: "raise:rank=1,step=8"}
    with pytest.raises(RanksFailed, match="InjectedFault"):
        run_ranks(
            _train, 2, args=(str(folder), str(folder / "several"), kind), environ=fault, after_failure_s=0.5
        )
    assert sorted(os.listdir(RunDir(folder / "several").checkpoints))[-1] == "step-00000006"
    run_ranks(_train, 3, args=(str(folder), str(folder / "several"), kind))
    whole = losses(folder, "one")
    assert len(whole) == 12 + 2  # and an evaluation after each epoch
    assert losses(folder, "several") == pytest.approx(whole, rel=1e-9)


def test_a_stream_without_a_length_is_refused_with_a_hint(folder: Path) -> None:
    with pytest.raises(RanksFailed, match=ConfigError.__name__) as failed:
        run_ranks(_train, 1, args=(str(folder), str(folder / "run"), "Endless"))
    assert "Endless has no length" in failed.value.tracebacks[0]
    assert "give the data set a __len__" in failed.value.tracebacks[0]
