"""`dist-train doctor` on this machine: two simulated nodes for real, planted faults, and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train.rundir import RunDir
from dist_train.testing import CliResult

pytestmark = pytest.mark.multiprocess
TWO_NODES = ("--device", "cpu", "--nodes", "2", "--gpus-per-node", "2")


def doctor(folder: Path, *words: str, env: dict[str, str | None] | None = None) -> CliResult:
    return launch_cli(["doctor", *words], cwd=folder, env=env, timeout_s=150)


def report_of(done: CliResult) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.mark.proof
def test_two_simulated_nodes(tmp_path: Path) -> None:
    done = doctor(tmp_path, *TWO_NODES, "--json")
    report = report_of(done)
    assert (done.code, report["would_launch"]) == (0, True), done
    facts = report["facts"]
    assert facts["job"] == {"nodes": 2, "procs": 2, "device": "cpu", "launcher": "local"}
    assert {(peer["node"], peer["peer"]) for peer in facts["peers"]} == {(0, 1), (1, 0)}
    assert all(0 < peer["round_trip_s"] < 5 for peer in facts["peers"])
    (seen,) = facts["shared_files"]
    assert (seen["node"], seen["stale"]) == (1, False)
    assert {tuple(link["ranks"]) for link in facts["links"]} == {(0, 1), (2, 3), (0, 2), (2, 0)}
    assert [one["size"] for one in facts["all_reduces"]] == [8, 1 << 20, 16 << 20]
    assert all(one["ranks"] == 4 and not one["wrong"] for one in facts["all_reduces"])
    run = RunDir(tmp_path / "runs" / "doctor-1")
    written = sorted(path.name for path in run.doctor.iterdir())
    assert written == [
        *(f"{kind}-{node}.json" for kind in ("node", "peers") for node in (0, 1)),
        "report.json",
    ]
    text = doctor(tmp_path, "--of", "@last")
    assert text.code == 0, text
    assert text.stdout.splitlines()[0].split() == ["CHECK", "NODES", "FOUND"]
    assert "a launch would work on 2 node(s) x 2 processes, cpu" in text.stdout.splitlines()[-1]
    assert "dist-train doctor fact" not in text.stdout + done.stderr
    (run.doctor / "report.json").unlink()
    (run.doctor / "report.json").mkdir()
    unwritten = doctor(tmp_path, "--of", "@last")
    assert (unwritten.code, unwritten.stdout) == (0, text.stdout), unwritten
    assert "report.json could not be written" in unwritten.stderr


@pytest.mark.proof
def test_a_machine_without_a_gpu_is_measured_with_two_processes(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--device", "cpu", "--json", "--name", "here")
    report = report_of(done)
    assert (done.code, report["facts"]["job"]["procs"]) == (0, 2), done
    assert report["run_dir"] == str(tmp_path / "runs" / "here")
    skipped = {one["check"] for one in report["findings"] if one["severity"] == "skipped"}
    assert skipped == {"GPUs", "connections", "shared files"}


@pytest.mark.proof
def test_an_interface_that_is_not_there_is_named_before_the_ranks_meet(tmp_path: Path) -> None:
    done = doctor(tmp_path, *TWO_NODES, "--json", env={**os.environ, "GLOO_SOCKET_IFNAME": "ib7"})
    report = report_of(done)
    assert (done.code, report["would_launch"]) == (78, False), done
    errors = {one["check"]: one for one in report["findings"] if one["severity"] == "error"}
    assert errors["interface"]["nodes"] == [0, 1]
    assert errors["interface"]["value"] == "there is no ib7"
    assert "GLOO_SOCKET_IFNAME=ib7" in errors["interface"]["cause"]
    assert "job" in errors, "the job itself has failed, as a launch would"


def test_a_job_that_cannot_begin_has_its_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = doctor(tmp_path, *TWO_NODES, "--run-dir", "file/run")
    assert (done.code, done.stdout) == (78, ""), done
    assert "the run directory" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.proof
def test_a_job_whose_agent_refuses_has_findings_also_later(tmp_path: Path) -> None:
    """Of so few open files no rank starts: there is no log of a rank."""
    few = 'ulimit -n 128 && exec "$0" -m dist_train.cli.main doctor --device cpu --nodes 2 --json'
    done = subprocess.run(
        ["bash", "-c", few, sys.executable], cwd=tmp_path, capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 78, done
    assert "may open 128 files and connections" in done.stderr
    later = doctor(tmp_path, "--of", "doctor-1", "--json")
    assert later.code == 78, later
    assert json.loads(later.stdout)["findings"] == json.loads(done.stdout)["findings"]


def test_the_plan_can_be_looked_at(tmp_path: Path) -> None:
    done = doctor(tmp_path, *TWO_NODES, "--dry-run")
    assert done.code == 0, done
    nodes = json.loads(done.stdout)["nodes"]
    assert len(nodes) == 2
    assert nodes[0]["argv"][-2:] == ["module", "dist_train.cluster_check"]
    assert not (tmp_path / "runs").exists()


def test_another_run_has_no_findings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    words = ["launch", "--name", "plain", "--device", "cpu", "train.py"]
    assert launch_cli(words, cwd=tmp_path, timeout_s=60).code == 0
    done = doctor(tmp_path, "--of", "plain")
    assert (done.code, done.stdout) == (66, ""), done
    assert "plain is no job of `dist-train doctor`" in done.stderr


def test_another_run_that_has_failed_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    words = ["launch", "--name", "plain", "--device", "cpu", "train.py"]
    assert launch_cli(words, cwd=tmp_path, timeout_s=60).code == 3
    done = doctor(tmp_path, "--of", "plain")
    assert (done.code, done.stdout) == (66, ""), done
    assert "plain is no job of `dist-train doctor`" in done.stderr
    assert not RunDir(tmp_path / "runs" / "plain").doctor.exists()
