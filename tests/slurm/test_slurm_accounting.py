"""With a real slurmdbd: the code in sacct, and the answer of sacct when the controller has none."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SlurmRun, launch
from warm_commands.warm_launch import cluster_cli

from dist_train.rundir import RunDir

pytestmark = pytest.mark.multiprocess


@pytest.mark.proves(
    "A rank's exit code is in sacct",
    limits="a real slurmdbd; all else runs without",
)
def test_a_ranks_exit_code_is_in_sacct(slurm_accounting: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text("import os, sys, time\nsys.exit(41) if os.environ['RANK'] == '1' else time.sleep(60)\n")
    ended = launch(tmp_path, "fail", "--device", "cpu", "--nodes", "2", "--gpus-per-node", "1", script)
    assert ended.code == 41, ended
    run = SlurmRun(slurm_accounting, RunDir(tmp_path / "runs" / "fail"))
    words = ("sacct", "-X", "-n", "--parsable2", "-o", "State,ExitCode", "-j", str(run.job_id))
    # slurmdbd hears of an end a second later than slurmctld.
    run.wait_for(lambda: "FAILED|41:0" in slurm_accounting.run(*words).stdout, "41 in sacct", 15)
    slurm_accounting.stop_controller()
    try:
        status = cluster_cli(["status", "fail"], cwd=tmp_path)
    finally:
        slurm_accounting.start_controller()
    assert status.code == 0, status
    assert "sacct" in status.stdout, "who answered"
    assert "41" in status.stdout
