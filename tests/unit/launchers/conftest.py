"""Jobs to render, a run directory, the stand-ins for Slurm's commands and for a Kubernetes API server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes_stand_ins import CLAIMS, DIGITS, Api, write_kubeconfig
from slurm_stand_ins import Commands, Job

from dist_train.jobs import JobSpec, Target
from dist_train.rundir import RunDir
from launchers.kubernetes import KubernetesLauncher


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """An empty run directory."""
    made = RunDir(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def job(tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    """A script on one node x 2 CPU ranks; `job(nodes=2)` changes it."""
    target = Target("script", "/home/me/train.py", ("--lr", "0.1"), "/home/me")
    # The local launcher kills whatever has its run's id, also what a test in another process has started.
    run_id = f"digits-{os.getpid()}" if request.path.name.startswith("test_local") else "digits-1f"
    spec = JobSpec("digits", run_id, tmp_path / "run", target, procs_per_node=2)

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


@pytest.fixture
def api(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """A stand-in for an API server; the kubeconfig's current context `here` means it."""
    api = Api()
    path = tmp_path_factory.mktemp("kube") / "config"
    write_kubeconfig(path, {"here": api.url})
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield api
    api.close()


@pytest.fixture
def launcher() -> KubernetesLauncher:
    """One that remembers nothing."""
    return KubernetesLauncher()


@pytest.fixture
def submitted(api: Api, run: RunDir, launcher: KubernetesLauncher) -> RunDir:
    """A job of two nodes with two ranks each, on the server and in the local record."""
    modes = {"accessModes": ["ReadWriteMany"]}
    api.put(f"{CLAIMS}/runs", {"metadata": {"name": "runs"}, "spec": modes, "status": modes})
    target = Target("script", "/home/me/train.py", (), "/home/me")
    spec = JobSpec("digits", "digits-1f", run.path, target, nodes=2, procs_per_node=2, grace_s=1.0)
    plan = launcher.plan(spec, launcher.example)
    run.plan.mkdir()
    for name, content in (*plan.files, *plan.aside):
        (run.plan / name).write_bytes(content)
    assert launcher.submit(plan) == DIGITS
    return run
