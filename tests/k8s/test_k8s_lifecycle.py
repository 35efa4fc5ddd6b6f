"""Whole runs on a cluster of real processes: the same job, deleted, killed, cancelled, resumed."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import yaml

from cluster.harness.runs import (
    LEDGER,
    SLOW,
    SLOW_TO_SAVE,
    SLOWLY,
    TWO_BY_ONE,
    TWO_BY_TWO,
    Hashes,
    Run,
    following,
    launch,
    ledger,
    local,
    on_volume,
    submit,
    verb,
    wait_for,
    workspace,
)
from cluster.kubernetes_cluster import KubernetesCluster
from dist_train.agent import timeouts
from dist_train.rundir.times.read_times import read_times

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(180)]
SLOW_FILES = (SLOW, SLOW.with_suffix(".py"))


@pytest.mark.proves(
    "2 pods x 2 ranks end with the bits of the local run, and `--dry-run` is what the API server received",
)
@pytest.mark.slow
def test_two_pods_train_to_the_local_runs_bits(cluster: KubernetesCluster, tmp_path: Path) -> None:
    """And what --dry-run prints is what the server received."""
    workspace(cluster, tmp_path, *SLOW_FILES)
    words = ("--run-id", "same-1", *TWO_BY_TWO, "slow.yaml")
    dry_run = launch(tmp_path, "same", "--dry-run", *words)
    assert dry_run.code == 0, dry_run
    done = launch(tmp_path, "same", *words)
    assert done.code == 0, done
    base = local(tmp_path / "local", "base", *TWO_BY_TWO, SLOW)
    assert on_volume(cluster, "same").hashes == base.hashes
    sent = [cluster.sent("POST", plural) for plural in ("configmaps", "services", "jobs")]
    assert [[body] for body in yaml.safe_load_all(dry_run.stdout)] == sent
    assert done.stdout.count("epoch 1/3  step 1/60") == 1, "each line once"


@pytest.mark.proof
@pytest.mark.proves(
    "A deleted pod saves, leaves with 75, and the gang goes on to the same bits",
)
@pytest.mark.slow
def test_a_deleted_pod_saves_and_the_gang_continues(
    cluster: KubernetesCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    workspace(cluster, tmp_path, *SLOW_FILES)
    run = submit(cluster, tmp_path, "deleted", *TWO_BY_ONE, *SLOWLY, "slow.yaml")
    run.wait_for_step(10)
    before = [cluster.pod(0), cluster.pod(1)]
    cluster.delete(cluster.pod(1))
    cluster.wait_job_result("Complete", within_s=90)
    assert {cluster.pod(0).uid, cluster.pod(1).uid}.isdisjoint(pod.uid for pod in before), "both are new"
    (preempted,) = run.events("preempted")
    assert run.resume_steps() == [None, preempted["step"]]
    assert preempted["step"] >= 10
    assert run.hashes == undisturbed_pair
    assert verb(tmp_path, "status", "deleted", "--exit-code").code == 0
    check_times(run)


def check_times(run: Run) -> None:
    """A pod does not know when its Job was submitted; the time between two gangs was in the queue."""
    times = read_times(run.run, is_script=False)
    assert times is not None
    first, second = times.attempts
    assert first.parts["queue"] is None
    between = second.parts["queue"]
    assert between is not None
    assert 0 < between < second.wall_s, times
    for attempt in times.attempts:
        assert sum(s or 0.0 for s in attempt.parts.values()) == pytest.approx(attempt.wall_s, rel=0.01)


@pytest.mark.proves(
    "With a grace period shorter than a save no save is begun, and the last good checkpoint counts",
)
@pytest.mark.proof
def test_a_grace_that_is_shorter_than_a_save_keeps_the_last_good_step(
    cluster: KubernetesCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    workspace(cluster, tmp_path, *SLOW_FILES, SLOW_TO_SAVE)
    words = ("slow.yaml", "model.target=slow_to_save:SlowToSave", "resilience.grace_s=2")
    run = submit(cluster, tmp_path, "short", *TWO_BY_ONE, *SLOWLY, *words)
    run.wait_for_step(10)
    first = cluster.pod(0)
    cluster.delete(first)
    cluster.wait_job_result("Complete", within_s=120)
    assert "a save was not possible, last good checkpoint: step 10" in cluster.logs(first)
    assert run.resume_steps() == [None, 10]
    assert run.hashes == undisturbed_pair


@pytest.mark.proves(
    "`kill -9` of a pod restarts the gang; each sample once in the union of the committed steps",
)
@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
def test_a_killed_pod_restarts_the_gang_and_no_sample_is_trained_twice(
    cluster: KubernetesCluster, tmp_path: Path, node: int
) -> None:
    workspace(cluster, tmp_path, LEDGER)
    run = submit(cluster, tmp_path, "killed", *TWO_BY_ONE, "--env", "SLOW_S=0.2", "ledger.py")
    wait_for(lambda: any(step > 12 for _, step, _ in ledger(run)), "steps after a checkpoint")
    cluster.kill(cluster.pod(node))
    cluster.wait_job_result("Complete", within_s=150)
    first, second = run.events("attempt_started")
    resumed = second["resume_step"]
    assert (first["resume_step"], resumed >= 10) == (None, True)
    committed = [
        sample
        for attempt, step, ids in ledger(run)
        for sample in ids
        if (step <= resumed if attempt == 0 else step > resumed)
    ]
    assert sorted(committed) == sorted([*range(200), *range(200)]), "each sample once in each of two epochs"
    replayed = [step for attempt, step, _ in ledger(run) if attempt == 0 and step > resumed]
    assert replayed, "the kill came after the checkpoint"


@pytest.mark.proves(
    "The exit code and `status` of a run come from its pods' termination messages",
)
def test_a_ranks_exit_code_is_that_of_launch_and_of_status(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    workspace(cluster, tmp_path)
    script = tmp_path / "code" / "fails.py"
    script.write_text("import os, sys\nsys.exit(41 if os.environ['RANK'] == '1' else 0)\n")
    done = launch(tmp_path, "fails", *TWO_BY_ONE, "fails.py")
    assert done.code == 41, done
    assert "FAILED: rank 1 (node 1, local rank 0)" in done.stdout + done.stderr
    assert cluster.job_result() == "Failed: PodFailurePolicy"
    assert {pod.exit_code for pod in cluster.pods()} == {41}, "no pod was started again"
    said = verb(tmp_path, "status", "fails")
    assert "41" in said.stdout, "from the verdict alone"


@pytest.mark.proves(
    "`cancel` twice removes everything; `resume` ends with the same bits",
)
@pytest.mark.proof
def test_cancel_removes_everything_and_resume_continues(
    cluster: KubernetesCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    workspace(cluster, tmp_path, *SLOW_FILES)
    with following(tmp_path, "twice", *TWO_BY_ONE, *SLOWLY, "slow.yaml") as command:
        run = on_volume(cluster, "twice")
        run.wait_for_step(10)
        for _ in range(2):
            said = verb(tmp_path, "cancel", "twice")
            assert said.code == 0, said
        assert command.wait(timeout=60) == 77, (tmp_path / "out.txt").read_text()
    cluster.wait_for(lambda: not cluster.pods(), "no pod")
    assert verb(tmp_path, "status", "twice", "--exit-code").code == 77
    resumed = verb(tmp_path, "resume", "twice")
    assert resumed.code == 0, resumed
    assert (run.resume_steps()[-1] or 0) >= 10
    assert run.hashes == undisturbed_pair


@pytest.mark.proves(
    "The API server goes away and comes back: `unknown`, never failed; Ctrl-C only detaches",
)
@pytest.mark.proof
def test_ctrl_c_detaches_and_the_server_may_go_away_and_come_back(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    workspace(cluster, tmp_path, *SLOW_FILES)
    with following(tmp_path, "away", *TWO_BY_ONE, *SLOWLY, "slow.yaml") as command:
        on_volume(cluster, "away").wait_for_step(10)
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=20) == 130
    assert "detached" in (tmp_path / "out.txt").read_text()
    cluster.down()
    away = verb(tmp_path, "status", "away")
    assert "unknown" in away.stdout, away
    assert "failed" not in away.stdout, "nobody answered, which is no failure"
    cluster.up()
    cluster.wait_job_result("Complete", within_s=timeouts.HOST_DEATH_S)
    assert verb(tmp_path, "status", "away", "--exit-code").code == 0


@pytest.mark.proves(
    "A secret is in no manifest, record or log",
)
def test_a_secret_is_in_no_manifest_record_or_log(cluster: KubernetesCluster, tmp_path: Path) -> None:
    canary = "canary-7f3a91"
    cluster.secret("wandb", key=canary)
    workspace(cluster, tmp_path)
    script = tmp_path / "code" / "reads.py"
    check = f"(value[:7], len(value)) == ('canary-', {len(canary)})"
    script.write_text(f"import os\nvalue = os.environ['WANDB']\nassert {check}\n")
    words = ("--secret", "WANDB", "--secret-ref", "WANDB=wandb/key", *TWO_BY_ONE, "reads.py")
    done = launch(tmp_path, "secret", *words)
    assert done.code == 0, done
    texts = [done.stdout, done.stderr, str(cluster.requests), *(cluster.logs(pod) for pod in cluster.pods())]
    files = [path for root in (tmp_path, cluster.volume) for path in root.rglob("*") if path.is_file()]
    assert not [text for text in texts if canary in text]
    assert not [path for path in files if canary.encode() in path.read_bytes()]


@pytest.mark.proof
@pytest.mark.slow
def test_status_counts_ranks_restarted_inside_a_pod_and_drained_pods(
    cluster: KubernetesCluster, tmp_path: Path
) -> None:
    workspace(cluster, tmp_path)
    dies = "if os.environ['DIST_TRAIN_ATTEMPT'] == '0':\n    os.kill(os.getpid(), 9)\n"
    script = tmp_path / "code" / "dies.py"
    script.write_text(f"import os, pathlib, time\n{dies}print('at work', flush=True)\ntime.sleep(600)\n")
    one = ("--device", "cpu", "--nodes", "1", "--gpus-per-node", "1")
    submit(cluster, tmp_path, "again", *one, "dies.py")
    first = cluster.pod(0)
    cluster.wait_for(lambda: "at work" in cluster.logs(first), "the second attempt")
    said = verb(tmp_path, "status", "again")
    assert re.search(rf"{first.name}  Running on .*restarts 1\b", said.stdout), said.stdout
    cluster.drain_node(first.node)
    cluster.wait_for(lambda: {pod.uid for pod in cluster.pods()} - {first.uid}, "its successor")
    second = cluster.pod(0)
    cluster.wait_for(lambda: "at work" in cluster.logs(second), "the third attempt")
    said = verb(tmp_path, "status", "again")
    assert re.search(rf"{second.name}  Running on .*restarts 2\b", said.stdout), said.stdout
