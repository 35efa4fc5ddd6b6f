"""`launch --profile` on Kubernetes: the traces of both pods' ranks land on the run volume."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.harness.runs import TWO_BY_ONE, launch, on_volume, workspace
from cluster.kubernetes_cluster import KubernetesCluster
from dist_train.profiling.trace_file import find_traces, read_trace, trace_path
from dist_train.profiling.trace_summary import summarise

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


def test_traces_of_all_pods_are_on_the_run_volume(cluster: KubernetesCluster, tmp_path: Path) -> None:
    workspace(cluster, tmp_path)
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    words = (*TWO_BY_ONE, "--profile", "3:5", "--profile-ranks", "all")
    done = launch(tmp_path, "traced", *words, "train.py")
    assert done.code == 0, done
    run = on_volume(cluster, "traced").run
    assert {attempt: list(found) for attempt, found in find_traces(run).items()} == {0: [0, 1]}
    for rank in range(2):
        found = summarise(read_trace(trace_path(run, 0, rank)), rank)
        assert (found.first, found.steps) == (3, 3)
        assert found.parts.communication_s > 0
    names = [path.name for path in run.profile.rglob("*") if path.is_file()]
    assert all(name.endswith(".trace.json.gz") for name in names), "nothing half-written is left"
