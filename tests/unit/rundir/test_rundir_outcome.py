"""failure.json and result.json, their text, and the stop file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_train.rundir import RunDir
from dist_train.rundir.failure import Failure, read_failure, write_failure
from dist_train.rundir.outcome_text import render_failure, render_result, root_cause_name
from dist_train.rundir.result import Result, read_result, write_result
from dist_train.rundir.stop_file import NO_STEP, Slot, StopFile

FAILURE = Failure(
    "rank",
    "exception",
    rank=3,
    local_rank=1,
    node_rank=1,
    host="n1",
    pid=77,
    exit_code=1,
    exception="ValueError",
    message="ValueError: bad batch",
    file="train.py",
    line=12,
    log="runs/a/logs/rank-3.log",
    log_tail=("Traceback", "", "ValueError: bad batch"),
    secondary_failures=(0, 1, 2),
    next=("dist-train resume a",),
    attempt=2,
    step=40,
)
RESULT = Result("a-id", "done", 0, 230, 10, 14370, 4, 1, {"loss": 0.0123, "accuracy": 0.98}, "ab" * 16)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "a")
    made.create()
    return made


def test_a_failure_reads_back_equal_and_its_class_has_the_key_class(run: RunDir) -> None:
    assert read_failure(run) is None
    write_failure(run, FAILURE)
    assert read_failure(run) == FAILURE
    record = json.loads(run.failure.read_text())
    assert (record["class"], record["schema_version"]) == ("exception", 1)
    assert "cls" not in record


def test_keys_of_later_versions_are_ignored(run: RunDir) -> None:
    assert Failure.from_record({**FAILURE.to_record(), "mood": "bad"}) == FAILURE
    write_result(run, RESULT)
    run.result.write_text(json.dumps({**json.loads(run.result.read_text()), "mood": "good"}))
    assert read_result(run) == RESULT


def test_the_failure_block_begins_with_the_root_cause_and_ends_with_what_to_run() -> None:
    lines = render_failure(FAILURE, 1).splitlines()
    assert lines[1] == "FAILED: rank 3 (node 1, local rank 1) on n1, pid 77: ValueError: bad batch"
    assert "  at      train.py:12" in lines
    assert "  where   attempt 3, step 40, exit code 1" in lines
    assert "  also    ranks 0-2 ended because of it (secondary failures)" in lines
    assert lines[-2] == "  next    dist-train resume a"
    assert "  │ Traceback" in lines


def test_the_name_of_a_lost_node_and_of_a_failure_without_a_rank() -> None:
    assert root_cause_name(Failure("dist-train", "node_lost", node_rank=2, host="n2")) == "node 2 on n2"
    assert root_cause_name(Failure("dist-train", "rendezvous")) == "the job"
    assert "secondary failures" not in render_failure(Failure("dist-train", "rendezvous", message="x"), 69)


def test_the_table_of_a_finished_run() -> None:
    text = render_result(Path("runs/a"), RESULT)
    for word in ("0.9800", "230 in 10 epochs, 4 ranks", "abababababababab", "dist-train status runs/a"):
        assert word in text


@pytest.mark.parametrize(
    ("whole_epochs", "samples_in_epoch", "text"),
    [
        (0, 12, "3, ended within epoch 1, 4 ranks"),
        (2, 8, "3, ended within epoch 3,"),
        (1, 0, "3 in 1 epoch,"),
    ],
)
def test_a_run_that_ended_within_an_epoch_says_which(
    whole_epochs: int, samples_in_epoch: int, text: str
) -> None:
    ended = Result("a", "done", 0, 3, whole_epochs, 12, 4, 1, samples_in_epoch=samples_in_epoch)
    assert text in render_result(Path("runs/a"), ended)


def test_the_stop_file_is_shared_between_agent_and_ranks(tmp_path: Path) -> None:
    agent = StopFile.create(tmp_path / "board-node-0", 2)
    rank = StopFile.open(tmp_path / "board-node-0")
    assert (rank.stop, rank.read(1)) == (0, Slot(0, NO_STEP, 0))
    agent.stop = 1
    rank.write(1, Slot(4711, 12, 99))
    assert rank.stop == 1
    assert (agent.read(0), agent.read(1)) == (Slot(0, NO_STEP, 0), Slot(4711, 12, 99))
    StopFile.create(tmp_path / "board-node-0", 2)
    assert StopFile.open(tmp_path / "board-node-0").stop == 0
    rank.close()
    agent.close()
