"""Whole runs of jobset, trainjob and volcano on a cluster of real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cluster.harness.job_kinds import JOB_KINDS, JobKind, KindRun, remaining_objects, submit_kind
from cluster.harness.runs import (
    SLOW,
    SLOWLY,
    TWO_BY_ONE,
    Hashes,
    following,
    launch,
    on_volume,
    verb,
    workspace,
)
from cluster.kubernetes_cluster import KubernetesCluster

pytestmark = [pytest.mark.multiprocess, pytest.mark.proof, pytest.mark.timeout(180)]
SLOW_FILES = (SLOW, SLOW.with_suffix(".py"))
every_kind = pytest.mark.parametrize("kind", JOB_KINDS, ids=str)


@pytest.mark.proves(
    "JobSet, TrainJob and Volcano jobs end with the same bits, also after a killed and a deleted pod; "
    "exit codes, `cancel`, `resume`",
    limits="their controllers are emulated by their sources' rules",
)
@every_kind
def test_two_pods_train_to_the_local_runs_bits(
    cluster: KubernetesCluster, tmp_path: Path, kind: JobKind, undisturbed_pair: Hashes
) -> None:
    """And what --dry-run prints is what the server received."""
    cluster.install(kind.operator)
    workspace(cluster, tmp_path, *SLOW_FILES)
    words = ("--kind", kind.kind, "--run-id", "same-1", *TWO_BY_ONE, "slow.yaml")
    dry_run = launch(tmp_path, "same", "--dry-run", *words)
    assert dry_run.code == 0, dry_run
    assert not cluster.requests, "a dry run asks nobody"
    done = launch(tmp_path, "same", *words)
    assert done.code == 0, done
    assert on_volume(cluster, "same").hashes == undisturbed_pair
    sent = [cluster.sent("POST", plural) for plural in kind.created]
    assert [[body] for body in yaml.safe_load_all(dry_run.stdout)] == sent
    assert done.stdout.count("epoch 1/3  step 1/60") == 1, "each line once"
    assert "PET_" not in str([pod.manifest for pod in cluster.pods()])
    assert KindRun(cluster, kind, "same").end == "Completed"
    said = verb(tmp_path, "status", "same", "--exit-code")
    assert (said.code, "phase      done" in said.stdout) == (0, True), said
    listed = verb(tmp_path, "list")
    assert "same  done   kubernetes  2 x 1" in listed.stdout


@pytest.mark.proves(
    "JobSet, TrainJob and Volcano jobs end with the same bits, also after a killed and a deleted pod; "
    "exit codes, `cancel`, `resume`",
    limits="their controllers are emulated by their sources' rules",
)
@every_kind
def test_a_killed_pod_restarts_the_gang(
    cluster: KubernetesCluster, tmp_path: Path, kind: JobKind, undisturbed_pair: Hashes
) -> None:
    cluster.install(kind.operator)
    workspace(cluster, tmp_path, *SLOW_FILES)
    job, run = submit_kind(cluster, tmp_path, kind, "killed", *TWO_BY_ONE, *SLOWLY, "slow.yaml")
    run.wait_for_step(10)
    before = {job.pod(node).uid for node in (0, 1)}
    cluster.kill(job.pod(1))
    cluster.wait_for(lambda: job.restarts == 1, "the restart")
    job.wait_end("Completed", within_s=120)
    assert before.isdisjoint(pod.uid for pod in cluster.pods()), "both are new"
    first, resumed = run.resume_steps()
    assert (first, (resumed or 0) >= 10) == (None, True)
    assert run.hashes == undisturbed_pair
    assert job.restarts == 1
    said = verb(tmp_path, "status", "killed", "--exit-code")
    assert said.code == 0, said
    assert "restarts 1" in said.stdout


@pytest.mark.proves(
    "JobSet, TrainJob and Volcano jobs end with the same bits, also after a killed and a deleted pod; "
    "exit codes, `cancel`, `resume`",
    limits="their controllers are emulated by their sources' rules",
)
@every_kind
def test_a_deleted_pod_saves_and_the_gang_continues(
    cluster: KubernetesCluster, tmp_path: Path, kind: JobKind, undisturbed_pair: Hashes
) -> None:
    cluster.install(kind.operator)
    workspace(cluster, tmp_path, *SLOW_FILES)
    job, run = submit_kind(cluster, tmp_path, kind, "deleted", *TWO_BY_ONE, *SLOWLY, "slow.yaml")
    run.wait_for_step(10)
    cluster.delete(job.pod(1))
    job.wait_end("Completed", within_s=120)
    (preempted,) = run.events("preempted")
    assert run.resume_steps() == [None, preempted["step"]]
    assert run.hashes == undisturbed_pair


@every_kind
def test_a_ranks_exit_code_is_that_of_launch_and_of_status(
    cluster: KubernetesCluster, tmp_path: Path, kind: JobKind
) -> None:
    cluster.install(kind.operator)
    workspace(cluster, tmp_path)
    script = tmp_path / "code" / "fails.py"
    script.write_text("import os, sys\nsys.exit(41 if os.environ['RANK'] == '1' else 0)\n")
    done = launch(tmp_path, "fails", "--kind", kind.kind, *TWO_BY_ONE, "fails.py")
    assert done.code == 41, done
    assert "FAILED: rank 1 (node 1, local rank 0)" in done.stdout + done.stderr
    job = KindRun(cluster, kind, "fails")
    fatal = {"volcano": "Terminated"}.get(kind.kind, "Failed: FailJobSetFailurePolicyAction")
    # Volcano's policies name single codes: what comes again knows that it is over.
    assert (job.end, job.restarts) == (fatal, 1 if kind.kind == "volcano" else 0)
    said = verb(tmp_path, "status", "fails", "--exit-code")
    assert said.code == 41, said
    assert "rank 1 (node 1, local rank 0)" in said.stdout, "from the verdict alone"


@pytest.mark.proves(
    "JobSet, TrainJob and Volcano jobs end with the same bits, also after a killed and a deleted pod; "
    "exit codes, `cancel`, `resume`",
    limits="their controllers are emulated by their sources' rules",
)
@every_kind
def test_cancel_removes_everything_and_resume_continues(
    cluster: KubernetesCluster, tmp_path: Path, kind: JobKind, undisturbed_pair: Hashes
) -> None:
    cluster.install(kind.operator)
    workspace(cluster, tmp_path, *SLOW_FILES)
    words = ("--kind", kind.kind, *TWO_BY_ONE, *SLOWLY, "slow.yaml")
    with following(tmp_path, "twice", *words) as command:
        run = on_volume(cluster, "twice")
        run.wait_for_step(10)
        running = verb(tmp_path, "status", "twice", "--exit-code")
        assert "phase      running" in running.stdout, running
        logs = verb(tmp_path, "logs", "twice", "--rank", "0")
        assert "epoch 1/3  step 1/60" in logs.stdout, logs
        for _ in range(2):
            said = verb(tmp_path, "cancel", "twice")
            assert said.code == 0, said
        assert command.wait(timeout=60) == 77, (tmp_path / "out.txt").read_text()
    cluster.wait_for(lambda: not remaining_objects(cluster), "nothing of it")
    assert verb(tmp_path, "status", "twice", "--exit-code").code == 77
    resumed = verb(tmp_path, "resume", "twice")
    assert resumed.code == 0, resumed
    assert (run.resume_steps()[-1] or 0) >= 10
    assert run.hashes == undisturbed_pair
