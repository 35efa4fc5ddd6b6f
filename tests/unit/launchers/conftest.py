"""Jobs to render, a run directory, and the stand-ins for Slurm's commands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_stand_ins import Commands, Job

from dist_train.jobs import JobSpec, Target
from dist_train.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An empty run directory."""
    made = RunDir(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A script on one node x 2 CPU ranks; `job(nodes=2)` changes it."""
    target = Target("script", "/home/me/train.py", ("--lr", "0.1"), "/home/me")
    spec = JobSpec("digits", "digits-1f", tmp_path / "run", target, procs_per_node=2)

    def make(**changes: Any) -> JobSpec:
        return replace(spec, **changes)

    return make


@pytest.fixture
def commands(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Commands:
    """The only commands on PATH: none, until they are put there."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", str(folder))
    return Commands(folder)


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_CONF", raising=False)
