"""`dist-train stacks` of a job on a real Slurm: the ranks of both nodes, asked through the run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import TWO_BY_ONE, submit
from warm_commands.warm_launch import cluster_cli

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(240)]
SCRIPT = """
import os, time
def wait_for_batch():
    time.sleep(600)
open(f"began-{os.environ['RANK']}", "w").close()
wait_for_batch()
"""


def test_the_ranks_of_all_nodes_answer(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    found = submit(slurm, tmp_path, "asked", *TWO_BY_ONE, "train.py")
    found.wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2, "both ranks")
    done = cluster_cli(["stacks", f"slurm:{found.job_id}", "--json"], cwd=tmp_path, timeout_s=100)
    ranks = json.loads(done.stdout)["ranks"]
    assert (done.code, [one["rank"] for one in ranks]) == (0, [0, 1]), done
    assert all("in wait_for_batch" in one["text"] for one in ranks)
    assert len({one["host"] for one in ranks}) == 2
    assert slurm.job(found.job_id)["JobState"] == "RUNNING"
