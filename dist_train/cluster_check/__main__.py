"""`-m dist_train.cluster_check`: one rank of the job that `dist-train doctor` launches.

Its output is one line per fact, on rank 0; the command that has launched it draws the conclusions.
"""

from __future__ import annotations

import os
import sys

from pydantic import BaseModel

from dist_train.cluster_check.node_check import NodeCheck
from dist_train.doctor.fact_lines import fact_line
from dist_train.doctor.facts import JobFacts
from dist_train.env import LAUNCHER, RankInfo, WorkerEnv
from dist_train.errors import ConfigError
from dist_train.rundir import RunDir

# Before they come here, nodes wait for each other's facts and files for some minutes at most.
_START_S = 600.0


def main() -> None:
    """Check this node on its first rank, then measure with all ranks."""
    info, worker = RankInfo.from_env(), WorkerEnv.from_env()
    if worker is None or worker.run_dir is None:
        raise ConfigError(
            "this is a rank of `dist-train doctor`, and no agent has started it", hint="dist-train doctor"
        )
    procs = info.local_world_size
    if info.rank == 0:
        launcher = os.environ.get(LAUNCHER, "")
        _emit(JobFacts(nodes=worker.nnodes, procs=procs, device=worker.device, launcher=launcher))
    if info.local_rank == 0:
        start = f"{worker.run_id}-{worker.attempt}"
        folder = RunDir(worker.run_dir).doctor
        NodeCheck(worker.node_rank, worker.nnodes, worker.device, folder, start, os.environ, _emit).run()
    if info.world_size > 1:
        _measure(worker.nnodes, procs)


def _measure(nodes: int, procs: int) -> None:
    # After the node's own facts: where torch or CUDA fails, those have been said.
    from dist_train.cluster_check.rank_speed import (
        gather_links,
        measure_all_reduces,
        measure_links,
        neighbours,
    )
    from dist_train.resilience.session import init

    with init(timeout_s=_START_S) as run:
        for reduced in measure_all_reduces(run.device, run.world_size):
            if run.is_main:
                _emit(reduced)
        links = measure_links(run.device, run.rank, procs, neighbours(nodes, procs))
        for link in gather_links(run.control, links):
            if run.is_main:
                _emit(link)


def _emit(fact: BaseModel) -> None:
    sys.stdout.write(fact_line(fact) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
