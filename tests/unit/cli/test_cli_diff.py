"""`dist-train diff`: where two runs part, to the bit."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.data.permutation import Permutation
from dist_train.rundir import RunDir
from dist_train.rundir.metrics_file import metrics_hash

GOLDEN = Path(__file__).parents[1] / "rundir" / "golden_run_v1"


@pytest.fixture
def pair(here: Path) -> Callable[..., tuple[RunDir, RunDir]]:
    """Two runs of the same config, the second with other records from some step on."""

    def make(change: Callable[[dict[str, Any]], None], **both: Any) -> tuple[RunDir, RunDir]:
        found = []
        for name in ("a", "b"):
            run = RunDir(here / "runs" / name)
            shutil.copytree(GOLDEN / "finished", run.path)
            records = [json.loads(line) for line in run.metrics.read_text().splitlines()]
            for record in records:
                record |= both if record["kind"] == "train" else {}
                if name == "b":
                    change(record)
            run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
            found.append(run)
        return found[0], found[1]

    return make


def at(step: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] >= step:
            record |= values

    return change


def found(dist_train: Any, code: int = 1) -> dict[str, Any]:
    said = dist_train("diff", "a", "b", "--json")
    assert said.code == code, said.err
    record: dict[str, Any] = json.loads(said.out)
    return record


def test_equal_runs_do_not_differ(pair: Any, dist_train: Any) -> None:
    pair(at(99))
    said = dist_train("diff", "a", "b")
    assert said.code == 0
    assert said.out.startswith("a and b: no record differs; ")
    assert "equal weights at step 23" in said.out
    assert found(dist_train, 0)["differs"] is False


def test_one_bit_of_a_loss_is_found(pair: Any, dist_train: Any) -> None:
    a, _ = pair(lambda record: None)
    steps = [json.loads(line) for line in a.metrics.read_text().splitlines()]
    train = {record["step"]: record for record in steps if record["kind"] == "train"}
    last = max(train)
    loss = train[last]["loss"]
    shutil.rmtree(a.path)
    shutil.rmtree(a.path.with_name("b"))
    pair(at(last, loss=math.nextafter(loss, 9.0)))
    record = found(dist_train)
    assert (record["step"], record["kind"]) == (last, "train")
    assert record["last_equal"] == max(step for step in train if step < last)
    assert [field["name"] for field in record["fields"]] == ["loss"]
    assert 0 < record["fields"][0]["relative"] < 1e-15
    said = dist_train("diff", "a", "b").out
    assert f"a and b differ from step {last} on (training)" in said
    assert repr(loss) in said
    assert repr(math.nextafter(loss, 9.0)) in said
    assert "trainer.log_every_steps=1" in said
    assert "own loss" not in said


def test_the_rank_whose_loss_differs_and_its_samples_are_named(pair: Any, dist_train: Any) -> None:
    losses = {"rank_losses": [70.5, 71.25], "gradient_number": 0.125}
    pair(at(20, loss=2.0, rank_losses=[70.5, 71.0], gradient_number=0.5), **losses)
    record = found(dist_train)
    assert (record["step"], record["ranks"]) == (20, [1])
    assert {field["name"] for field in record["fields"]} == {"loss", "gradient_number"}
    expected = Permutation(1438, 0, 0, "uci-digits-1/train")[list(range(19 * 64, 20 * 64))].tolist()
    assert record["samples"][0]["ranks"] == {"1": expected[1::2]}
    said = dist_train("diff", "a", "b").out
    assert "own loss differs: rank 1" in said
    assert f"samples of that step (epoch 1), rank 1: {expected[1]}, {expected[3]}, " in said


def test_a_gradient_that_differs_is_not_taken_for_a_loss(pair: Any, dist_train: Any) -> None:
    pair(at(20, gradient_number=0.5), rank_losses=[70.5, 71.25], gradient_number=0.125)
    assert found(dist_train)["ranks"] == []
    assert "it is the backward pass, or the exchange of gradients" in dist_train("diff", "a", "b").out


def test_a_run_of_an_older_version_has_no_digests_to_compare(pair: Any, dist_train: Any) -> None:
    a, b = pair(at(1, gradient_number=0.5, rank_losses=[1.0, 2.0]))
    assert found(dist_train, 0)["differs"] is False
    assert metrics_hash(a.metrics) == metrics_hash(b.metrics), "the digests are no part of it"


def test_steps_that_were_done_again_count_once(pair: Any, dist_train: Any) -> None:
    a, _ = pair(at(99))
    first = a.metrics.read_text().splitlines()[0]
    a.metrics.write_text(
        json.dumps({**json.loads(first), "loss": 9.0}) + "\n" + a.metrics.read_text() + '{"ki'
    )
    assert found(dist_train, 0)["differs"] is False


def test_what_they_were_given_is_named(pair: Any, dist_train: Any) -> None:
    _, b = pair(at(1, loss=3.0))
    b.config.write_text(b.config.read_text().replace("seed: 0", "seed: 1", 1))
    assert found(dist_train)["inputs"]["seed"] == ["0", "1"]
    assert "WHAT THEY WERE GIVEN" in dist_train("diff", "a", "b").out


def test_other_weights_of_a_checkpoint_are_a_difference(pair: Any, dist_train: Any) -> None:
    _, b = pair(at(99))
    manifest = b.checkpoints / "step-00000023" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "weights_hash": "0" * 32}))
    assert found(dist_train)["checkpoints"] == {"equal": [], "other": [23]}


def test_runs_with_nothing_in_common_are_refused(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a").began().trained(10)
    make_run("b").began().trained(15)
    said = dist_train("diff", "a", "b")
    assert (said.code, said.out) == (78, "")
    assert "have nothing to compare" in said.err
    said = dist_train("diff", "a", "runs/a")
    assert said.code == 2
    assert "are one run" in said.err


def test_samples_of_a_script_are_not_guessed(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a").began().trained(10, 0.5)
    make_run("b").began().trained(10, 0.25)
    record = found(dist_train)
    assert "only for a config" in record["samples"][0]["why_not"]
    assert record["ranks"] is None
