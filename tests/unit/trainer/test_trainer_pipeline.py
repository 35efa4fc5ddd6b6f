"""A config's training over stages: records, evaluation, callbacks and rules are those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dist_train as dt
from dist_train.config.load import load_text
from dist_train.rundir.directory import RunDir
from dist_train.rundir.metrics_file import read_metrics
from dist_train.testing import run_ranks
from dist_train.trainer.run_training import train

pytestmark = pytest.mark.multiprocess
TEXT = """
model: {target: "dist_train.models.transformer:ByteTransformer",
        args: {width: 16, depth: 2, heads: 2, context: 8, dropout: 0.0}}
task: {target: "dist_train.trainer.task:NextTokenTask", args: {ignore_index: 32}}
data:
  train: {target: "test_trainer_pipeline:windows"}
  evaluation: {target: "test_trainer_pipeline:windows"}
  batch_size: 10
optimizer: {target: adamw, args: {lr: 0.01}}
trainer: {epochs: 2, accumulate: 4, log_every_steps: 1, clip_norm: 0.5, callbacks: [{target: ema}]}
checkpoint: {every_epochs: 1}
"""
LINE = """
model: nonfinite_cases:deep
data: {train: {target: nonfinite_cases:Line, args: {bad: [23]}}, batch_size: 4}
loss: torch.nn.functional:mse_loss
optimizer: {target: torch.optim:SGD, args: {lr: 0.05}}
trainer: {epochs: 2, accumulate: 2, log_every_steps: 1}
checkpoint: {every_steps: 3}
"""


def windows() -> Any:
    """Twenty-three windows: tails, and shares without a sample."""
    from dist_train.datasets.text import TextBytes

    return TextBytes(text="the quick brown fox jumps over the lazy dog " * 5, context=8)


def trained(folder: Path, text: str, changes: tuple[str, ...]) -> tuple[list[dict[str, Any]], str | None]:
    with dt.init(seed=0, device="cpu", timeout_s=30) as run:
        result = train(load_text(text, "run.yaml", changes).config, run, RunDir(folder))
        return list(read_metrics(RunDir(folder).metrics)), result and result.weights_hash


def figures(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["kind"], r["step"], r["loss"], *sorted(r["metrics"].items())) for r in records]


MESHES = [(2, {}), (4, {"stage": 2}), (4, {"stage": 2, "shard": 2})]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("ranks", "options"), MESHES, ids=["2", "2x2", "2x2-sharded"])
def test_records_of_units_that_vary_and_of_evaluations_are_those_of_one_process(
    tmp_path: Path, ranks: int, options: dict[str, int]
) -> None:
    [(expected, _)] = run_ranks(trained, 1, args=(tmp_path / "one", TEXT, ()))
    mesh = ["strategy=pipeline", *(f"strategy.{name}={size}" for name, size in options.items())]
    found = run_ranks(trained, ranks, args=(tmp_path / "stages", TEXT, tuple(mesh)))
    assert {record["kind"] for record in expected} == {"train", "eval"}
    for ours, theirs in zip(figures(found[0][0]), figures(expected), strict=True):
        assert ours[:2] == theirs[:2]
        assert ours[2] == pytest.approx(theirs[2], rel=1e-4)
        assert dict(ours[3:]) == pytest.approx(dict(theirs[3:]), rel=1e-4)


@pytest.mark.proof
@pytest.mark.parametrize("action", ["skip", "rollback"])
def test_a_step_that_is_not_finite_is_left_out_on_all_stages(tmp_path: Path, action: str) -> None:
    rule = f"trainer.on_nonfinite={action}"
    [(expected, _)] = run_ranks(trained, 1, args=(tmp_path / "one", LINE, (rule,)))
    found = run_ranks(trained, 2, args=(tmp_path / "stages", LINE, (rule, "strategy=pipeline")))[0][0]
    assert [r["step"] for r in found] == [r["step"] for r in expected]
    assert found[-1]["loss"] == pytest.approx(expected[-1]["loss"], rel=1e-4)
