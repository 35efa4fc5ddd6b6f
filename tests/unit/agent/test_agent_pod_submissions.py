"""Pods of one submission: when the restart count begins again, and when the submission has ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.platform.pod_submissions import earlier_exit
from dist_train.agent.settings import Settings
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event, read_events
from dist_train.rundir.failure import Failure, write_failure


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "train")
    made.create()
    return made


def settings_of(run: RunDir, submission: str, node: int = 0) -> Settings:
    environ = {
        env.RUN_DIR: str(run.path),
        env.RUN_ID: "train",
        env.LAUNCHER: "kubernetes",
        env.NNODES: "2",
        env.NPROC_PER_NODE: "1",
        env.RDZV: "tcp://train-0.train:29400",
        env.JOB: "train.0",
        env.SUBMISSION: submission,
        "JOB_COMPLETION_INDEX": str(node),
    }
    return read_settings(["config", "/etc/dist-train/config.yaml"], environ)


def record_submission(settings: Settings) -> None:
    platform_of("kubernetes").record_submission(settings)


def submitted(run: RunDir) -> list[str]:
    return [event["submission"] for event in read_events(run, "submitted")]


def finish(run: RunDir, code: int) -> None:
    append_event(run, "finished", 0, exit_code=code, why="the reason")
    append_event(run, "checkpoint_committed", 0, step=7)  # commits are found by polling: it may come last


def test_the_first_pod_writes_what_it_knows(run: RunDir) -> None:
    record_submission(settings_of(run, "uid-1"))
    assert submitted(run) == ["uid-1"]
    record = json.loads(run.job.read_text())
    assert (record["launcher"], record["handle"], record["by_hand"]) == (
        "kubernetes",
        "kubernetes:train",
        True,
    )
    assert record["spec"]["nodes"] == 2


def test_pods_that_replace_it_continue_the_same_count(run: RunDir) -> None:
    for kind in ("attempt_started", "first_failure"):
        record_submission(settings_of(run, "uid-1"))
        append_event(run, kind, 0)  # type: ignore[arg-type]
    record_submission(settings_of(run, "uid-1"))
    assert submitted(run) == ["uid-1"]


def test_a_new_submission_begins_a_new_count_and_forgets_the_cancel(run: RunDir) -> None:
    record_submission(settings_of(run, "uid-1"))
    (run.control / "cancel").touch()
    record_submission(settings_of(run, "uid-1"))
    assert (run.control / "cancel").exists(), "it is meant for this one"
    record_submission(settings_of(run, "uid-2"))
    assert submitted(run) == ["uid-1", "uid-2"]
    assert not (run.control / "cancel").exists()


@pytest.mark.parametrize(
    ("code", "again"), [(0, True), (2, True), (76, True), (77, True), (78, True), (41, False), (69, False)]
)
def test_where_the_uid_is_not_known_only_an_end_for_good_makes_the_next_start_a_new_one(
    run: RunDir, code: int, again: bool
) -> None:
    """After any other code the next pod may be Kubernetes's own restart."""
    record_submission(settings_of(run, ""))
    finish(run, code)
    record_submission(settings_of(run, ""))
    assert len(submitted(run)) == 1 + again


@pytest.mark.parametrize(
    ("code", "process_code"), [(0, 0), (41, 76), (137, 76), (74, 76), (2, 2), (76, 76), (77, 77), (78, 78)]
)
@pytest.mark.parametrize("node", [0, 1])
def test_a_pod_after_the_verdict_repeats_it_so_that_none_comes_after_it(
    run: RunDir, code: int, process_code: int, node: int
) -> None:
    record_submission(settings_of(run, "uid-1"))
    failure = Failure(source="dist-train", cls="dist_train", exit_code=code)
    write_failure(run, failure)
    finish(run, code)
    end = earlier_exit(settings_of(run, "uid-1", node))
    assert end is not None
    assert (end.code, end.exit_code, end.attempt) == (code, process_code, 0)
    assert end.failure == (None if code == 0 else failure)
    assert end.why == "the run has ended already: the reason"


def test_a_ranks_own_code_is_not_taken_for_ours(run: RunDir) -> None:
    """Kubernetes got 1, so a new pod may be its own restart."""
    for submission in ("uid-1", ""):
        record_submission(settings_of(run, submission))
    write_failure(run, Failure(source="rank", cls="exit", rank=1, exit_code=78))
    finish(run, 78)
    record_submission(settings_of(run, ""))
    assert submitted(run) == ["uid-1"]
    end = earlier_exit(settings_of(run, "uid-1"))
    assert end is not None
    assert (end.code, end.exit_code) == (78, 76)


def test_a_failure_of_an_earlier_attempt_is_not_the_ends(run: RunDir) -> None:
    record_submission(settings_of(run, "uid-1"))
    write_failure(run, Failure(source="rank", cls="signal", rank=1, exit_code=137))
    finish(run, 77)
    end = earlier_exit(settings_of(run, "uid-1"))
    assert end is not None
    assert (end.code, end.exit_code, end.failure) == (77, 77, None)


@pytest.mark.parametrize("code", [69, 70, 143])
def test_ends_that_another_start_may_recover_from_do_not_count(run: RunDir, code: int) -> None:
    record_submission(settings_of(run, "uid-1"))
    finish(run, code)
    assert earlier_exit(settings_of(run, "uid-1")) is None


def test_another_submission_has_not_ended(run: RunDir) -> None:
    record_submission(settings_of(run, "uid-1"))
    finish(run, 41)
    assert earlier_exit(settings_of(run, "uid-2")) is None
    assert earlier_exit(settings_of(run, "")) is None


@pytest.mark.parametrize("kind", ["preempted", "attempt_started", "restarted"])
def test_a_run_that_goes_on_has_not_ended(run: RunDir, kind: str) -> None:
    record_submission(settings_of(run, "uid-1"))
    append_event(run, kind, 0)  # type: ignore[arg-type]
    assert earlier_exit(settings_of(run, "uid-1")) is None


def test_an_empty_directory_has_not_ended(run: RunDir) -> None:
    assert earlier_exit(settings_of(run, "uid-1")) is None
