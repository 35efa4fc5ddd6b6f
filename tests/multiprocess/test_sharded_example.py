"""The language-model example, spread over ranks: ddp's curve, and all that follows a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Finished, start
from warm_commands.warm_launch import launch_cli

from dist_train.checkpoint.store.verify import verify_checkpoint

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300), pytest.mark.proof]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "language_model.yaml"
SHORT = (
    "trainer.epochs=null",
    "trainer.steps=12",
    "trainer.log_every_steps=1",
    "trainer.accumulate=3",
    "trainer.callbacks=[{target: ema}]",
    "checkpoint.every_epochs=null",
    "checkpoint.every_steps=6",
)


def train(folder: Path, strategy: str, ranks: int, *more: str) -> Finished:
    words = ("--gpus-per-node", ranks, EXAMPLE, f"strategy={strategy}", *SHORT, *more)
    finished = start(folder, strategy, *words, timeout_s=200)
    assert finished.cli.code == 0, finished.cli
    return finished


def losses(finished: Finished) -> list[float]:
    lines = map(json.loads, finished.run.metrics.read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


@pytest.mark.proves(
    "The language-model example has the same curve with ddp, fsdp, hsdp, tensor_parallel, "
    "fsdp_tensor_parallel and pipeline",
    limits="relative 1e-4 in float32, 12 steps on CPUs",
)
def test_the_curve_is_that_of_ddp_and_what_follows_a_run_works(tmp_path: Path) -> None:
    expected = losses(train(tmp_path, "ddp", 2))
    assert len(expected) == 12
    others = (
        ("fsdp", 3),
        ("hsdp", 4),
        ("tensor_parallel", 2),
        ("fsdp_tensor_parallel", 4),
        ("pipeline", 2),
    )
    for strategy, ranks in others:
        finished = train(tmp_path, strategy, ranks)
        assert losses(finished) == pytest.approx(expected, rel=1e-4)
        step = finished.run.checkpoints / "step-00000012"
        assert verify_checkpoint(step).ok
        shown = launch_cli(["checkpoint", "verify", str(step)], cwd=tmp_path)
        copies = "2 copies compared" if strategy == "hsdp" else "no copies to compare"
        assert "whole" in shown.stdout, shown
        assert f"sharded, {copies}" in shown.stdout, shown
        out = tmp_path / f"{strategy}.safetensors"
        exported = launch_cli(["checkpoint", "export", str(step), "--out", str(out)], cwd=tmp_path)
        assert exported.code == 0, exported
        assert out.stat().st_size > 100_000
