"""Processes that a run left behind are known by the run id in their environment."""

from __future__ import annotations

import os
import subprocess
import time

from dist_train import env
from dist_train.jobs.orphans import end_processes, find_processes


def start(run_id: str, node: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"], env={**os.environ, env.RUN_ID: run_id, env.NODE_RANK: str(node)})


def test_only_this_runs_and_this_nodes_are_ended() -> None:
    mine = f"orphans-{os.getpid()}"
    processes = [start(mine, 0), start(mine, 1), start(mine + "-other", 0)]
    try:
        deadline = time.monotonic() + 5
        while len(find_processes(mine)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert find_processes(mine, 1) == [processes[1].pid]
        assert end_processes(mine, 0, keep=[processes[0].pid]) == []
        assert end_processes(mine, 0) == [processes[0].pid]
        assert processes[0].wait(5) == -9
        assert end_processes(mine) == [processes[1].pid]
        assert processes[2].poll() is None
        assert end_processes(mine) == []
    finally:
        for process in processes:
            process.kill()
            process.wait()
