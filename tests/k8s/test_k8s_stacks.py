"""`dist-train stacks` on Kubernetes: a pod on the run volume asks, and nothing of it is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.harness.runs import TWO_BY_ONE, submit, verb, wait_for, workspace
from cluster.kubernetes_cluster import KubernetesCluster
from cluster.objects import JOBS

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(300)]
SCRIPT = """
import os, time
def wait_for_batch():
    time.sleep(600)
open(os.environ["DIST_TRAIN_RUN_DIR"] + "/began-" + os.environ["RANK"], "w").close()
wait_for_batch()
"""


def test_the_ranks_of_all_pods_answer(cluster: KubernetesCluster, tmp_path: Path) -> None:
    workspace(cluster, tmp_path)
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    run = submit(cluster, tmp_path, "asked", *TWO_BY_ONE, "train.py").run
    wait_for(lambda: len(list(run.path.glob("began-*"))) == 2, "both ranks", within_s=120)
    done = verb(tmp_path, "stacks", "asked", "--json")
    ranks = json.loads(done.stdout)["ranks"]
    assert (done.code, [one["rank"] for one in ranks]) == (0, [0, 1]), done
    assert all("in wait_for_batch" in one["text"] for one in ranks)
    assert len({one["host"] for one in ranks}) == 2
    jobs = [job["metadata"]["name"] for job in cluster.store.select(JOBS, "default")]
    assert jobs == ["asked"], "the pod that asked is removed"
    assert verb(tmp_path, "status", "asked").stdout.split("phase")[1].split()[0] == "running"
