"""The first example of the README: its accuracy and its time, at any number of nodes and processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import start

pytestmark = [pytest.mark.multiprocess, pytest.mark.alone]
DIGITS = Path(__file__).parent.parent.parent / "examples" / "digits.yaml"


@pytest.mark.proves(
    "The digits are learned (>= 96 % for seeds 0 to 4, under 20 s)",
    limits="2 CPU cores",
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.proof) for seed in range(1, 5))])
def test_the_digits_are_learned(tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    finished = start(tmp_path, "digits", DIGITS, f"seed={seed}", timeout_s=60)
    assert finished.cli.code == 0, finished.cli
    accuracy = finished.result.metrics["accuracy"]
    with capfd.disabled():
        print(f"\ndigits, seed {seed}: {accuracy:.2%} of the held-out fifth in {finished.cli.seconds:.1f} s")
    assert accuracy >= 0.96
    assert finished.cli.seconds < 20, finished.cli
    assert "accuracy" in finished.cli.stdout
    assert "\x1b" not in finished.cli.stdout + finished.cli.stderr
