"""`launch --bind`: refused before any file is made, or carried to every node's agent."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.run.find_run import open_run
from dist_train.cli.verbs.resume import Changes, changed_spec

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


@pytest.fixture(autouse=True)
def _many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


def launch(dist_train: Any, *words: object) -> Any:
    return dist_train("launch", "--dry-run", "--gpus-per-node", 2, *words, DIGITS)


def test_it_goes_to_the_agent_and_into_the_record(dist_train: Any) -> None:
    said = launch(dist_train, "--device", "cpu", "--bind", "cores", "--nodes", 2)
    record = json.loads(said.out)
    assert record["spec"]["bind"] == "cores"
    assert all("--bind=cores" in node["argv"] for node in record["nodes"])


def test_a_config_has_it_too_and_the_command_line_wins(here: Path, dist_train: Any) -> None:
    (here / "a.yaml").write_text(DIGITS.read_text().rstrip() + "\n  bind: numa\n  device: cpu\n")
    assert json.loads(dist_train("launch", "--dry-run", "a.yaml").out)["spec"]["bind"] == "numa"
    said = dist_train("launch", "--dry-run", "--bind", "0-1", "a.yaml")
    assert json.loads(said.out)["spec"]["bind"] == "0-1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--bind", "core"], "expected none, cores, numa or the CPUs of each local rank, such as 0-3,8/4-7"),
        (["--bind", "0-1"], "--bind 0-1 has 1 list(s) of CPUs, and each node has 2 rank(s)"),
        (["--bind", "0/1/2", "--launcher", "slurm"], "has 3 list(s) of CPUs, and each node has 2 rank(s)"),
        (["--bind", "0/1000"], "--bind gives local rank 1 CPUs that it may not have: 1000"),
        (["--bind", "0/1", "--nodes", 2], "2 simulated nodes share this machine"),
        (["--bind", "cores", "--nodes", 200], "400 ranks need 400 cores of their own, and"),
    ],
)
def test_what_cannot_fit_is_refused_here(
    dist_train: Any, here: Path, words: list[object], message: str
) -> None:
    said = launch(dist_train, "--device", "cpu", *words)
    assert (said.code, message in said.err) == (78, True), said
    assert list(here.iterdir()) == []


def test_a_clusters_cores_are_not_those_of_this_machine(dist_train: Any) -> None:
    said = launch(dist_train, "--launcher", "slurm", "--bind", "0-63/64-127")
    assert said.code == 0, said
    assert "--bind=0-63/64-127" in said.out


def test_threads_follow_the_cores_on_gpus_and_are_1_on_cpu(dist_train: Any) -> None:
    """On CPU the number of threads is part of the bits, which binding must not change."""
    on_gpus = launch(dist_train, "--launcher", "slurm", "--bind", "cores", "--cpus-per-gpu", 8)
    assert "--threads-per-rank 0 " in on_gpus.out
    assert "threads per rank: as many as a rank has cores (--bind cores)" in on_gpus.err
    on_cpu = launch(dist_train, "--launcher", "slurm", "--bind", "cores", "--device", "cpu")
    assert "--threads-per-rank 1 " in on_cpu.out


def test_resume_may_bind_otherwise(make_run: Callable[..., Any]) -> None:
    make_run("a-1", procs_per_node=2, bind="0/1").began().finished(3)
    opened = open_run("a-1")
    assert changed_spec(opened, Changes())[0].bind == "0/1"
    assert changed_spec(opened, Changes(bind="none"))[0].bind == "none"
    with pytest.raises(Exception, match=r"has 2 list\(s\) of CPUs, and each node has 1 rank"):
        changed_spec(opened, Changes(gpus_per_node=1))
    with pytest.raises(Exception, match="expected none, cores, numa"):
        changed_spec(opened, Changes(bind="core"))
