"""Machines that are drained or fail under a run of real processes: it continues, with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.harness.runs import SLOW, SLOWLY, TWO_BY_ONE, Hashes, submit, verb, workspace
from cluster.kubernetes_cluster import KubernetesCluster
from dist_train.agent import timeouts

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(300)]
SLOW_FILES = (SLOW, SLOW.with_suffix(".py"))


@pytest.mark.proves(
    "A drained and a dead machine cost no bit",
)
def test_a_drained_machine_costs_no_restart_and_changes_no_bit(
    cluster: KubernetesCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    workspace(cluster, tmp_path, *SLOW_FILES)
    run = submit(cluster, tmp_path, "drained", *TWO_BY_ONE, *SLOWLY, "--max-restarts", "0", "slow.yaml")
    run.wait_for_step(10)
    old = cluster.pod(1)
    cluster.drain_node(old.node)
    cluster.wait_job_result("Complete", within_s=120)
    assert cluster.pod(1).node != old.node
    assert cluster.job()["status"].get("failed", 0) == 0
    (preempted,) = run.events("preempted")
    assert run.resume_steps() == [None, preempted["step"]]
    assert run.hashes == undisturbed_pair


@pytest.mark.proves(
    "A drained and a dead machine cost no bit",
)
def test_a_dead_machine_is_named_and_the_gang_continues_without_it(
    cluster: KubernetesCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    """The agents count it as the one restart; the Job does not."""
    workspace(cluster, tmp_path, *SLOW_FILES)
    run = submit(cluster, tmp_path, "dead", *TWO_BY_ONE, *SLOWLY, "--max-restarts", "1", "slow.yaml")
    run.wait_for_step(10)
    living, lost = cluster.pod(0), cluster.pod(1)
    cluster.silence_node(lost.node)
    cluster.wait_for(
        lambda: cluster.pod(0).uid != living.uid, "the other has heard of it", timeouts.HOST_DEATH_S
    )
    cluster.taint_node(lost.node)
    cluster.store.pass_time(100)
    status = verb(tmp_path, "status", "dead")
    assert f"pod {lost.name}: stuck Terminating" in status.stdout, status
    assert f"kubectl -n default delete node {lost.node}" in status.stdout
    cluster.delete_node(lost.node)
    cluster.wait_job_result("Complete", within_s=150)
    assert cluster.job()["status"].get("failed", 0) == 0
    (_, resumed) = run.resume_steps()
    assert (resumed or 0) >= 10
    assert run.hashes == undisturbed_pair
    assert verb(tmp_path, "status", "dead", "--exit-code").code == 0
