"""Preempted, out of time, cancelled: saved at one step, requeued once or not at all, the same bits."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from conftest import lend, require_binaries
from slurm_cluster import BINARIES, SlurmCluster
from slurm_config import ClusterSettings
from slurm_runs import SLOW, SLOWLY, TWO_BY_ONE, TWO_BY_TWO, Hashes, SlurmRun, agents, following, submit
from slurm_warm_tasks import WarmCluster
from warm_commands.warm_launch import cluster_cli

from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step

# Its handler takes longer than the agent waits for a script to read the stop flag.
PLAIN = """
import os, signal, sys, time

file = open(f"saved-{os.environ['RANK']}", "w")

def save(number, frame):
    time.sleep(4)
    print("saved", file=file, flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
time.sleep(2)  # the agent knows of the handler
file.flush()
time.sleep(300)
"""

# As a compiler that a rank calls; the attempt after the preemption does not need it any more.
COMPILES = """
import os, subprocess, time

if os.environ["DIST_TRAIN_ATTEMPT"] == "0":
    open(f"up-{os.environ['RANK']}", "w").close()
    subprocess.run(["sleep", "300"], check=True)
"""

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(240)]


@pytest.fixture(scope="session")
def _user_signal_session() -> Iterator[SlurmCluster]:
    require_binaries(BINARIES)
    with WarmCluster(ClusterSettings(preempt_user_signal=True, warm_tasks=True)) as cluster:
        yield cluster


@pytest.fixture
def slurm_user_signal(
    _user_signal_session: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """A cluster where a preemption sends the job's own signal (USR2) too."""
    yield from lend(_user_signal_session, monkeypatch)


@pytest.mark.proves(
    "A preemption saves and requeues once, by TERM or by the job's own signal; the same bits",
    limits="GraceTime 5 s and TERM",
)
@pytest.mark.slow
def test_a_preemption_by_terms_default_signal(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    check_preemption(slurm, tmp_path, undisturbed_pair, "low5", TWO_BY_ONE)


@pytest.mark.proves(
    "A preemption saves and requeues once, by TERM or by the job's own signal; the same bits",
    limits="GraceTime 5 s and TERM",
)
@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("cold_tasks")
def test_a_preemption_with_a_longer_grace(slurm: SlurmCluster, tmp_path: Path, undisturbed: Hashes) -> None:
    check_preemption(slurm, tmp_path, undisturbed, "low15", TWO_BY_TWO)


@pytest.mark.proves(
    "A preemption saves and requeues once, by TERM or by the job's own signal; the same bits",
    limits="GraceTime 5 s and TERM",
)
@pytest.mark.proof
@pytest.mark.parametrize("partition", ["low5", "low15"])
@pytest.mark.slow
def test_a_preemption_by_the_users_signal(
    slurm_user_signal: SlurmCluster, tmp_path: Path, undisturbed: Hashes, partition: str
) -> None:
    check_preemption(slurm_user_signal, tmp_path, undisturbed, partition, TWO_BY_TWO)


def check_preemption(
    slurm: SlurmCluster, folder: Path, undisturbed: Hashes, partition: str, shape: Sequence[str]
) -> None:
    """A job of a higher partition takes the nodes; the run goes on when it has them again."""
    witness = folder / "witness"
    witness.mkdir()
    words = (*shape, "-p", partition, *SLOWLY, "--env", f"WITNESS={witness}", SLOW)
    low = submit(slurm, folder, "low", *words)
    low.wait_for_step(10)
    high = (
        "sbatch",
        "-p",
        "high",
        "-N4",
        "--exclusive",
        "--parsable",
        "-o",
        "/dev/null",
        "--wrap",
        "srun sleep 1",
    )
    subprocess.run(high, check=True, cwd=folder, timeout=30)
    low.wait_done()
    assert low.job["Restarts"] == "1", "requeued once"
    (preempted,) = low.events("preempted")
    first, second = low.resume_steps()
    assert first is None
    assert second == preempted["step"] >= 10
    assert low.hashes == undisturbed
    for rank in range(2 * int(shape[-1])):
        lines = [json.loads(line) for line in (witness / f"rank-{rank}-of-0.jsonl").read_text().splitlines()]
        stopped = [line for line in lines if line["stop"]]
        assert len(stopped) >= 3, "rank lived on after the signal, to save"
        assert all(line["spawned"] for line in stopped), f"the process that rank {rank} spawned outlives it"
        assert stopped[0]["workers"] == 2, f"both loader workers of rank {rank} outlive the signal"


@pytest.mark.proof
def test_a_plain_scripts_own_handler_is_called_once_by_a_preemption(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    script = tmp_path / "plain.py"
    script.write_text(PLAIN)
    run = submit(slurm, tmp_path, "plain", *TWO_BY_ONE, script)
    saved = [tmp_path / f"saved-{rank}" for rank in range(2)]
    run.wait_for(lambda: all(path.exists() for path in saved), "ranks at work")
    slurm.run("scancel", "--signal=TERM", str(run.job_id))
    job = slurm.wait_for(run.job_id, ("FAILED", "COMPLETED"), within_s=60)
    assert [path.read_text() for path in saved] == ["saved\n"] * 2
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "143:0"), "stopped, and not done"


@pytest.mark.proof
def test_a_preemption_that_ends_a_command_of_a_rank_is_requeued(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "compiles.py"
    script.write_text(COMPILES)
    run = submit(slurm, tmp_path, "compiles", *TWO_BY_ONE, script)
    run.wait_for(lambda: len(list(tmp_path.glob("up-*"))) == 2, "ranks at work")
    slurm.run("scancel", "--signal=TERM", str(run.job_id))
    run.wait_done()
    assert run.job["Restarts"] == "1"


@pytest.mark.proves(
    "The real time limit saves and requeues; the run ends with the same bits",
    limits="of two minutes",
)
@pytest.mark.proof
@pytest.mark.slow
def test_a_real_time_limit_saves_and_goes_on(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    # The signal is asked for 60 s before the end, and may come 30 s earlier, as Slurm looks every 30 s:
    # 30 to 60 s after the start. The first attempt would take 96 s; on a slow machine the second is
    # signalled too.
    run = submit(slurm, tmp_path, "timed", *TWO_BY_ONE, "--time", "2", "--env", "SLOW_S=0.1", SLOW)
    run.wait_for(lambda: bool(run.events("preempted")), "the signal of the time limit", within_s=110)
    run.wait_done()
    saved = [event["step"] for event in run.events("preempted")]
    assert run.job["Restarts"] == str(len(saved)), "requeued once by each signal"
    assert run.resume_steps() == [None, *saved]
    assert saved[0] > 0
    assert run.hashes == undisturbed_pair


@pytest.mark.proves(
    "A signal in the first second is not lost",
    limits="coreutils >= 8.31",
)
@pytest.mark.usefixtures("cold_tasks")
def test_a_signal_of_the_scheduler_in_the_first_second_is_not_lost(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    early = submit(slurm, tmp_path, "early", *TWO_BY_ONE, SLOW)
    slurm.wait_for(early.job_id, ("RUNNING",), within_s=30)
    early.wait_for(lambda: (early.run.logs / "node-0.log").exists(), "an agent has begun to import")
    slurm.run("scancel", "--signal=USR2", str(early.job_id))
    early.wait_for(lambda: early.job["Restarts"] == "1", "the requeue", within_s=40)


@pytest.mark.proves(
    "A cancelled job saves and is not requeued, by `dist-train cancel` and by `scancel`",
)
@pytest.mark.slow
def test_a_cancelled_job_saves_and_stays_ended(slurm: SlurmCluster, tmp_path: Path) -> None:
    with following(tmp_path, "cancelled", *TWO_BY_ONE, *SLOWLY, SLOW, "trainer.steps=100000") as command:
        found = SlurmRun(slurm, RunDir(tmp_path / "runs" / "cancelled"))
        found.wait_for_step(10)
        said = cluster_cli(["cancel", "cancelled"], cwd=tmp_path, timeout_s=60)
        assert said.code == 0, said
        assert command.wait(timeout=30) == 77, (tmp_path / "out.txt").read_text()
    killed = submit(slurm, tmp_path, "killed", *TWO_BY_ONE, *SLOWLY, SLOW, "trainer.steps=100000")
    killed.wait_for_step(10)
    slurm.run("scancel", str(killed.job_id))
    slurm.wait_for(killed.job_id, ("CANCELLED",), within_s=30)
    for run in (found, killed):
        saved = newest_step(run.run)
        assert saved is not None
        assert run.job["Restarts"] == "0"
        assert cluster_cli(["status", run.run.path.name, "--exit-code"], cwd=tmp_path).code == 77
    killed.wait_for(lambda: bool(killed.events("preempted")), "scancel's TERM is a notice to save")


@pytest.mark.proves(
    "A site that refuses the requeue: 75, and `resume` ends with the same bits",
)
@pytest.mark.proof
def test_a_site_that_refuses_the_requeue_leads_to_resume(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    words = (*TWO_BY_ONE, "--requeue", "no", *SLOWLY, SLOW)
    with following(tmp_path, "once", *words) as command:
        once = SlurmRun(slurm, RunDir(tmp_path / "runs" / "once"))
        once.wait_for_step(10)
        slurm.run("scancel", "--signal=TERM", str(once.job_id))
        assert command.wait(timeout=40) == 75, (tmp_path / "out.txt").read_text()
    said = (tmp_path / "out.txt").read_text()
    assert "not requeued; go on with: dist-train resume" in said
    assert once.job["ExitCode"] == "75:0"
    first = once.job_id
    resumed = cluster_cli(["resume", "once"], cwd=tmp_path, timeout_s=90)
    assert resumed.code == 0, resumed
    assert once.job_id > first
    assert once.hashes == undisturbed_pair


# The second node never comes: the nodes gather until the stop. Ranks that have begun do a step, and save it.
ALONE = """#!/bin/sh
[ "$SLURM_PROCID" = 0 ] && exec "$@"
until [ -e "$DIST_TRAIN_RUN_DIR/control/verdict-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}" ]; do sleep 0.1; done
exit 75
"""


@pytest.mark.proves(
    "Three starts without progress end with 76",
)
@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.usefixtures("cold_tasks")
def test_three_starts_without_progress_give_up(slurm: SlurmCluster, tmp_path: Path) -> None:
    alone = tmp_path / "alone.sh"
    alone.write_text(ALONE)
    alone.chmod(0o755)
    stuck = submit(slurm, tmp_path, "stuck", *TWO_BY_ONE, "--exec-prefix", str(alone), SLOW)
    for restart in range(3):
        stuck.wait_for(lambda: 0 in agents(stuck.run), f"node 0's agent of start {restart}", 60)
        slurm.run("scancel", "--signal=USR2", str(stuck.job_id))
        stuck.wait_for(lambda restart=restart: ends(stuck) > restart, "a stop", 60)  # type: ignore[misc]
        stuck.wait_for(lambda: not agents(stuck.run), "the agents' end", 30)
    job = slurm.wait_for(stuck.job_id, ("FAILED",), within_s=30)
    assert (job["ExitCode"], job["Restarts"]) == ("76:0", "2")
    assert not stuck.events("attempt_started")


def ends(run: SlurmRun) -> int:
    return len(run.events("preempted")) + len(run.events("finished"))
