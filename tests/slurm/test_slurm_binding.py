"""`--bind` on Slurm: agents divide what Slurm gave them, and refuse what these nodes do not have."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import TWO_BY_ONE, SlurmRun, launch

from dist_train.rundir import RunDir
from dist_train.rundir.cpu_list import parse_cpu_list

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(240)]
SCRIPT = """
import json, os, pathlib
pathlib.Path(f"seen-{os.environ['RANK']}.json").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
"""


def test_each_nodes_agent_binds_its_ranks(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = launch(tmp_path, "bound", *TWO_BY_ONE, "--bind", "cores", tmp_path / "train.py")
    assert done.code == 0, done
    (started,) = SlurmRun(slurm, RunDir(tmp_path / "runs" / "bound")).events("attempt_started")
    seen = [json.loads((tmp_path / f"seen-{rank}.json").read_text()) for rank in range(2)]
    assert [sorted(parse_cpu_list(node["cpus"])) for node in started["nodes"]] == seen
    assert all(set(cpus) <= os.sched_getaffinity(0) for cpus in seen)


def test_cores_that_the_nodes_do_not_have_are_refused_there(slurm: SlurmCluster, tmp_path: Path) -> None:
    """The login node cannot know: the agents find it, and node 0 ends the run before any rank starts."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = launch(tmp_path, "unfit", *TWO_BY_ONE, "--bind", "4000", tmp_path / "train.py")
    assert done.code == 78, done
    assert (
        "and 1 more: --bind gives local rank 0 CPUs that it may not have: 4000" in done.stdout + done.stderr
    )
    assert not (tmp_path / "seen-0.json").exists()
