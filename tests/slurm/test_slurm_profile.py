"""`launch --profile` on Slurm: the traces of both nodes' ranks land in the run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import TWO_BY_ONE, launch

from dist_train.profiling.trace_file import find_traces, read_trace, trace_path
from dist_train.profiling.trace_summary import summarise
from dist_train.rundir import RunDir

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(240)]
SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""


def test_traces_of_all_nodes_are_in_the_run_directory(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = launch(tmp_path, "traced", *TWO_BY_ONE, "--profile", "3:5", "--profile-ranks", "all", script)
    assert done.code == 0, done
    run = RunDir(tmp_path / "runs" / "traced")
    assert {attempt: list(found) for attempt, found in find_traces(run).items()} == {0: [0, 1]}
    for rank in range(2):
        found = summarise(read_trace(trace_path(run, 0, rank)), rank)
        assert (found.first, found.steps) == (3, 3)
        assert found.parts.communication_s > 0
    names = [path.name for path in run.profile.rglob("*") if path.is_file()]
    assert all(name.endswith(".trace.json.gz") for name in names), "nothing half-written is left"
