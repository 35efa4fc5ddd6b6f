"""Where the time of a job on Slurm went: in the queue until its agent started."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import submit

from dist_train.rundir.times.read_times import read_times

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(240)]
# Asked for were 5 s; Slurm counts in whole ones.
WAITED_S = 4.0


def test_the_time_before_a_job_starts_was_in_the_queue(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "short.py"
    script.write_text("import time\ntime.sleep(1)\n")
    words = ("--device", "cpu", "--nodes", "1", "--gpus-per-node", "1", "--sbatch-arg", "begin=now+5")
    run = submit(slurm, tmp_path, "late", *words, script)
    run.wait_done()
    times = read_times(run.run, is_script=True)
    assert times is not None
    parts = times.parts
    assert parts["queue"] is not None
    assert parts["queue"] >= WAITED_S, times
    assert sum(seconds or 0.0 for seconds in parts.values()) == pytest.approx(times.wall_s, rel=0.01)
    assert parts["compute"] is not None
    assert parts["compute"] >= 1.0
    assert times.goodput is not None
    assert times.goodput_with_queue is not None
    assert times.goodput > times.goodput_with_queue
