"""A job submitted by hand: agent 0 writes what a launcher would have, and overwrites no launcher's record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_train import env
from dist_train.agent.command_line import read_settings
from dist_train.agent.platform.choose_platform import platform_of
from dist_train.agent.settings import Settings
from dist_train.jobs import JobSpec, Target
from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.rundir.records import write_json_atomic

ARGV = ["--device", "cpu", "--folder", "/home/me", "script", "/home/me/train.py", "--epochs", "10"]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "train")
    made.create()
    return made


def settings_of(run: RunDir, launcher: str = "slurm") -> Settings:
    environ = {
        env.RUN_DIR: str(run.path),
        env.RUN_ID: "train",
        env.LAUNCHER: launcher,
        env.NNODES: "2",
        env.NPROC_PER_NODE: "4",
        env.NODE_RANK: "0",
        env.RDZV: f"file://{run.path}/control/rdzv-12.0",
        env.MAX_RESTARTS: "5",
        env.GRACE_S: "60",
    }
    return read_settings(ARGV, environ)


def record_submission(settings: Settings, environ: dict[str, str]) -> None:
    platform_of(settings.launcher).record_submission(settings, environ)


def record(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.job.read_text())
    return found


def handles(run: RunDir) -> list[str]:
    return [event["handle"] for event in read_events(run, "submitted")]


def test_every_verb_finds_the_run(run: RunDir) -> None:
    record_submission(settings_of(run), {"SLURM_JOB_ID": "12"})
    assert run.is_run
    found = record(run)
    assert (found["launcher"], found["handle"], found["by_hand"]) == ("slurm", "slurm:12", True)
    assert JobSpec.from_json(found["spec"]) == JobSpec(
        name="train",
        run_id="train",
        run_dir=run.path,
        target=Target("script", "/home/me/train.py", ("--epochs", "10"), "/home/me"),
        nodes=2,
        procs_per_node=4,
        max_restarts=5,
        grace_s=60.0,
    )
    assert handles(run) == ["slurm:12"]


def test_a_requeue_of_the_job_changes_nothing(run: RunDir) -> None:
    record_submission(settings_of(run), {"SLURM_JOB_ID": "12"})
    before = run.job.read_bytes()
    record_submission(settings_of(run), {"SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": "1"})
    assert run.job.read_bytes() == before
    assert handles(run) == ["slurm:12"], "restarts are still counted from there"


def test_submitted_again_by_hand_the_new_job_is_the_runs(run: RunDir) -> None:
    record_submission(settings_of(run), {"SLURM_JOB_ID": "12"})
    record_submission(settings_of(run), {"SLURM_JOB_ID": "15"})
    assert record(run)["handle"] == "slurm:15"
    assert handles(run) == ["slurm:12", "slurm:15"]


def test_what_a_launcher_wrote_stays(run: RunDir) -> None:
    write_json_atomic(run.job, {"launcher": "slurm", "handle": "slurm:12@c1", "spec": {}})
    before = run.job.read_bytes()
    for number in ("12", "15"):
        record_submission(settings_of(run), {"SLURM_JOB_ID": number})
    assert run.job.read_bytes() == before
    assert handles(run) == []


@pytest.mark.parametrize(("launcher", "environ"), [("local", {"SLURM_JOB_ID": "12"}), ("slurm", {})])
def test_elsewhere_nothing_is_written(run: RunDir, launcher: str, environ: dict[str, str]) -> None:
    record_submission(settings_of(run, launcher), environ)
    assert not run.is_run
    assert not run.events.exists()
