"""`dist-train doctor --launcher slurm` on a real Slurm: a short job on two nodes, and what it has found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import TWO_BY_ONE
from warm_commands.warm_launch import cluster_cli

from dist_train.rundir import RunDir

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(300)]


def test_two_nodes_are_checked_by_a_job_of_the_queue(slurm: SlurmCluster, tmp_path: Path) -> None:
    words = ["doctor", "--launcher", "slurm", *TWO_BY_ONE, "--json"]
    done = cluster_cli(words, cwd=tmp_path, timeout_s=200)
    report = json.loads(done.stdout)
    errors = [one for one in report["findings"] if one["severity"] == "error"]
    assert (done.code, report["would_launch"], errors) == (0, True, []), done
    facts = report["facts"]
    assert facts["job"] == {"nodes": 2, "procs": 1, "device": "cpu", "launcher": "slurm"}
    assert [node["node"] for node in facts["nodes"]] == [0, 1]
    assert {(peer["node"], peer["peer"]) for peer in facts["peers"]} == {(0, 1), (1, 0)}
    assert all(not peer["problem"] for peer in facts["peers"])
    (seen,) = facts["shared_files"]
    assert (seen["node"], seen["stale"], seen["problem"]) == (1, False, "")
    assert {tuple(link["nodes"]) for link in facts["links"]} == {(0, 1), (1, 0)}
    assert all(link["rate"] > 0 for link in facts["links"])
    assert [one["ranks"] for one in facts["all_reduces"]] == [2, 2, 2]
    assert all(not one["wrong"] for one in facts["all_reduces"])
    run = RunDir(tmp_path / "runs" / "doctor-1")
    assert str(run.path) == report["run_dir"]
    assert json.loads((run.doctor / "report.json").read_text())["facts"] == facts
    job = int(json.loads(run.job.read_text())["handle"].removeprefix("slurm:"))
    assert slurm.job(job)["JobState"] == "COMPLETED"
    again = cluster_cli(["doctor", "--of", f"slurm:{job}", "--json"], cwd=tmp_path, timeout_s=100)
    assert json.loads(again.stdout)["findings"] == report["findings"], again
