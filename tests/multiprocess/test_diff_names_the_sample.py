"""Two real runs, one of whose data has one other sample: `dist-train diff` finds step, rank and sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train.data.permutation import Permutation

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(180)]

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
CHANGED = 777
RANKS = 3
_DATA = f"""
import os
from dist_train.datasets.digits import Digits

class OddDigits(Digits):
    def __init__(self, split):
        super().__init__(split)
        if "ODD" in os.environ:
            self.images = self.images.clone()
            self.images[{CHANGED}, 0, 3, 3] += 0.001
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "odd_digits.py").write_text(_DATA)
    text = DIGITS.read_text().replace("dist_train.datasets.digits:Digits", "odd_digits:OddDigits", 1)
    (tmp_path / "odd.yaml").write_text(text)
    return tmp_path


def launch(folder: Path, name: str, **environ: str) -> None:
    words = ["--device", "cpu", "--gpus-per-node", str(RANKS), "--name", name, "odd.yaml"]
    changes = ["trainer.epochs=1", "trainer.log_every_steps=1", "model.args.dropout=0"]
    done = launch_cli(["launch", *words, *changes], folder, {"OMP_NUM_THREADS": "1", **environ})
    assert done.code == 0, done.stderr


def test_the_step_the_rank_and_the_sample_are_named(folder: Path) -> None:
    for name in ("a", "b"):
        launch(folder, name)
    same = launch_cli(["diff", "a", "b", "--json"], folder)
    assert (same.code, json.loads(same.stdout)["differs"]) == (0, False), same.stdout
    launch(folder, "odd", ODD="1")
    said = launch_cli(["diff", "a", "odd", "--json"], folder)
    assert said.code == 1, said.stderr
    found = json.loads(said.stdout)
    place = int(Permutation(1438, 0, 0, "uci-digits-1/train").inverse(CHANGED))
    step, rank = place // 64 + 1, place % 64 % RANKS
    assert (found["step"], found["last_equal"], found["ranks"]) == (step, step - 1, [rank])
    assert {field["name"] for field in found["fields"]} >= {"loss", "gradient_number"}
    for samples in found["samples"]:
        assert list(samples["ranks"]) == [str(rank)]
        assert CHANGED in samples["ranks"][str(rank)]
    assert found["inputs"] == {}
