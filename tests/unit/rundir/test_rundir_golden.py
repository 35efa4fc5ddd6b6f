"""Run directories of the first release still open: every reader reads golden_run_v1, which never changes.

Both are runs of the digits with two ranks. In `failed` rank 1 raised in step 32, and rank 0 at the same
time with gloo's "Connection closed by peer", so that its failure.json has a secondary failure and a hint,
under the keys of record version 1. Machine paths and host names were replaced.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dist_train.checkpoint.store.verify import list_checkpoints, verify_checkpoint
from dist_train.cli.main import run as run_cli
from dist_train.cli.run.find_run import open_run
from dist_train.cli.run.run_summary import summarize
from dist_train.config import load_config
from dist_train.jobs.run_state import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import committed_steps
from dist_train.rundir.device_record import read_devices
from dist_train.rundir.events import RecentEvents, read_events
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.metrics_file import metrics_hash, read_metrics
from dist_train.rundir.outcome_text import render_failure
from dist_train.rundir.result import read_result
from dist_train.rundir.stop_file import StopFile

GOLDEN = Path(__file__).parent / "golden_run_v1"
HINT = "did you mean 'cuda:0'? run.device is this rank's own"


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with copies of both runs, as `runs/` of a project has them."""
    shutil.copytree(GOLDEN, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def dist_train(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`dist-train WORDS...`: its output; fails the test unless the exit code is 0."""

    def command(*words: str) -> str:
        capsys.readouterr()
        code = run_cli(list(words))
        captured = capsys.readouterr()
        assert code == 0, captured.err
        return captured.out

    return command


def test_the_failure_is_read_with_its_hint_and_its_secondary_failures(runs: Path) -> None:
    record = json.loads((runs / "failed" / "failure.json").read_text())
    assert (record["victims"], record["mend"], "hint" in record) == ([0], HINT, False)
    failure = read_failure(RunDir(runs / "failed"))
    assert failure == Failure.from_record(record)
    assert (failure.rank, failure.cls, failure.secondary_failures, failure.hint) == (
        1,
        "exception",
        (0,),
        HINT,
    )
    text = render_failure(failure, failure.exit_code)
    assert f"hint    {HINT}" in text
    assert "rank 0 ended because of it" in text


def test_a_failure_that_is_written_today_has_every_key_of_version_1(runs: Path) -> None:
    record = json.loads((runs / "failed" / "failure.json").read_text())
    assert set(record) <= {"schema_version", "time", *Failure.from_record(record).to_record()}
    assert Failure.from_record(Failure.from_record(record).to_record()) == Failure.from_record(record)


def test_the_result_the_metrics_and_the_events(runs: Path) -> None:
    finished, failed = RunDir(runs / "finished"), RunDir(runs / "failed")
    result = read_result(finished)
    assert result is not None
    assert (result.steps, result.world_size, result.status) == (23, 2, "done")
    assert metrics_hash(finished.metrics) == result.metrics_hash
    assert [record["step"] for record in read_metrics(finished.metrics)][-1] == 23
    assert [event["kind"] for event in read_events(finished)] == [
        "submitted",
        "attempt_started",
        "checkpoint_committed",
        "finished",
    ]
    assert [event["kind"] for event in RecentEvents(failed).read()] == [
        "attempt_started",
        "first_failure",
        "finished",
    ]
    assert lease_state(finished).exit_code == 0
    assert lease_state(failed).exit_code == 1


def test_the_stop_file_and_the_devices(runs: Path) -> None:
    stop_file = StopFile.open(runs / "finished" / "control" / "board-node-0")
    assert (stop_file.stop, [stop_file.read(rank).step for rank in range(2)]) == (0, [23, 23])
    stop_file.close()
    assert read_devices(RunDir(runs / "finished"), 0) == ()  # it ran on the CPU


def test_the_checkpoints(runs: Path) -> None:
    finished, failed = RunDir(runs / "finished"), RunDir(runs / "failed")
    assert committed_steps(finished) == committed_steps(failed) == [23]
    (listed,) = list_checkpoints(finished.checkpoints)
    assert listed.step == 23
    verify_checkpoint(listed.path)


def test_status_list_logs_and_checkpoint_list(dist_train: Callable[..., str]) -> None:
    assert "Invalid device string" in dist_train("status", "failed")
    status = json.loads(dist_train("status", "finished", "--json"))
    assert (status["phase"], status["checkpoint"]["step"], status["train"]["step"]) == ("done", 23, 23)
    listed = dist_train("list")
    assert "finished" in listed
    assert "failed" in listed
    assert "RuntimeError: Invalid device string" in dist_train("logs", "failed", "--rank", "1")
    assert dist_train("checkpoint", "list", "finished").splitlines()[1].split()[:2] == ["23", "1"]


def test_config_show_reads_the_resolved_config(dist_train: Callable[..., str]) -> None:
    assert "seed: 0" in dist_train("config", "show", "runs/finished/config.yaml")
    assert load_config("runs/failed/config.yaml").config.model.target == "faulty:Net"


def test_resume_reads_the_job_and_plans_the_next_attempt(dist_train: Callable[..., str]) -> None:
    opened = open_run("failed")
    assert (opened.launcher.name, opened.spec.procs_per_node, opened.spec.target.kind) == (
        "local",
        2,
        "config",
    )
    facts = summarize(opened.run)
    assert (facts.attempt, facts.checkpoint_step) == (0, 23)
    assert facts.failure is not None
    assert "dist_train.agent" in dist_train("resume", "failed", "--dry-run")
