"""`dist-train compare`: runs beside each other, in the terminal and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.rundir.records import write_json_atomic

GOLDEN = Path(__file__).parents[1] / "rundir" / "golden_run_v1"


@pytest.fixture
def golden(here: Path) -> None:
    for name in ("finished", "failed"):
        shutil.copytree(GOLDEN / name, here / "runs" / name)


def row(text: str, begins: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.startswith(begins)]
    return line.removeprefix(begins).split()


def test_figures_curves_and_differences_stand_beside_each_other(golden: None, dist_train: Any) -> None:
    said = dist_train("compare", "finished", "failed")
    assert (said.code, said.err) == (0, "")
    assert row(said.out, "ended") == ["done", "failed"]
    assert row(said.out, "steps") == ["23", "30"]
    assert row(said.out, "loss (evaluation) ") == ["2.3019", "2.28859"]
    assert "loss (training), " in said.out
    assert row(said.out, "trainer.epochs") == ["1", "2"]
    assert row(said.out, "target")[0].startswith("config:/home/user")
    assert "\x1b" not in said.out


def test_equal_runs_are_the_same_to_the_bit(here: Path, dist_train: Any) -> None:
    for name in ("one", "two"):
        shutil.copytree(GOLDEN / "finished", here / "runs" / name)
    said = dist_train("compare", "one", "two")
    assert "CONFIG: no difference" in said.out
    assert "VERSIONS: no difference" in said.out
    assert said.out.endswith("the same to the bit: weights_hash, state_hash, metrics_hash\n")


def test_three_runs_as_json(golden: None, make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("young").began().trained(10, 0.75).trained(20, float("nan"))
    said = dist_train("compare", "finished", "failed", "young", "--json")
    found = json.loads(said.out)
    assert found["schema_version"] == 1
    assert [run["name"] for run in found["runs"]] == ["finished", "failed", "young"]
    assert [run["ended"] for run in found["runs"]] == ["done", "failed", "running"]
    [loss] = [one for one in found["figures"] if (one["kind"], one["name"]) == ("train", "loss")]
    assert loss["values"][2] == "nan"
    [curve] = [one for one in found["curves"] if (one["kind"], one["name"]) == ("train", "loss")]
    assert curve["points"][2] == [[10, 0.75]]
    assert found["different"]["config"]["trainer.epochs"] == [1, 2, None]


def test_runs_without_records_and_damaged_ones_have_dashes(
    golden: None, make_run: Callable[..., Any], dist_train: Any
) -> None:
    empty = make_run("empty").run
    empty.config.write_bytes(b"\xff")
    said = dist_train("compare", "finished", "empty")
    assert said.code == 0
    assert row(said.out, "ended") == ["done", "not", "begun"]
    assert row(said.out, "loss (training)  ") == ["2.28081", "-"]
    assert "[dist-train] empty: config.yaml cannot be read" in said.err


def test_escape_codes_of_a_record_do_not_reach_the_terminal(
    golden: None, make_run: Callable[..., Any], dist_train: Any
) -> None:
    run = make_run("evil").began().trained(1, 0.5, **{"name\x1b[31m": 1.0}).run
    write_json_atomic(run.attempts / "0" / "fingerprint.json", {"torch": "2\x1b[2J"})
    said = dist_train("compare", "finished", "evil")
    assert said.code == 0
    assert "\x1b" not in said.out


def test_a_run_is_not_compared_with_itself(golden: None, dist_train: Any) -> None:
    said = dist_train("compare", "finished", "failed", "runs/finished")
    assert said.code == 2
    assert "finished and runs/finished are one run" in said.err
