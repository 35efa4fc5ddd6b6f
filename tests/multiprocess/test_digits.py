"""The example that README begins with: how well it learns, how long it takes, whatever its shape."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import start

pytestmark = pytest.mark.multiprocess
DIGITS = Path(__file__).parent.parent.parent / "examples" / "digits.yaml"


@pytest.mark.parametrize("seed", range(5))
def test_the_digits_are_learned(tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    finished = start(tmp_path, "digits", "--gpus-per-node", 2, DIGITS, f"seed={seed}", timeout_s=60)
    assert finished.cli.code == 0, finished.cli
    accuracy = finished.result.metrics["accuracy"]
    with capfd.disabled():
        print(f"\ndigits, seed {seed}: {accuracy:.2%} of the held-out fifth in {finished.cli.seconds:.1f} s")
    assert accuracy >= 0.96
    assert finished.cli.seconds < 20, finished.cli
    assert "accuracy" in finished.cli.stdout
    assert "\x1b" not in finished.cli.stdout + finished.cli.stderr


def test_counts_are_equal_and_figures_close_at_every_shape(tmp_path: Path) -> None:
    """The same samples in the same order: after 20 steps only the sum's order differs."""
    words = (
        "trainer.steps=20",
        "model.args.dropout=0",
        "trainer.log_every_steps=1",
        "checkpoint.every_steps=20",
    )
    alone = start(tmp_path, "one", DIGITS, *words)
    together = start(tmp_path, "four", "--nodes", 2, "--gpus-per-node", 2, DIGITS, *words)
    assert alone.result.samples == together.result.samples
    assert alone.result.steps == together.result.steps == 20
    assert together.result.metrics["loss"] == pytest.approx(alone.result.metrics["loss"], rel=1e-3)
