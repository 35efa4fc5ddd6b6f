"""Killed ranks, agents, daemons and nodes: named within the bounds, requeued, the same bits in the end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster
from slurm_runs import SLOW, SLOWLY, TWO_BY_ONE, Hashes, SlurmRun, agents, kill, ranks, submit

from dist_train.agent import timeouts

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(240)]


def begun(slurm: SlurmCluster, folder: Path, name: str, *words: object) -> SlurmRun:
    """A run that has committed its first checkpoint."""
    run = submit(slurm, folder, name, *TWO_BY_ONE, *(words or SLOWLY), SLOW)
    run.wait_for_step(10)
    return run


def check_end(run: SlurmRun, undisturbed_pair: Hashes, requeued: str) -> None:
    run.wait_done(within_s=110)
    assert run.job["Restarts"] == requeued
    assert len(run.events("attempt_started")) == 2
    assert (run.resume_steps()[1] or 0) >= 10
    assert run.hashes == undisturbed_pair


@pytest.mark.proves(
    "A rank killed by `kill -9` is restarted inside the job, an agent by one requeue; the same bits",
    limits="every process of the attempt gone within 15 s",
)
@pytest.mark.slow
def test_a_killed_rank_is_restarted_inside_the_job(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    run = begun(slurm, tmp_path, "rank")
    kill(ranks(run.run)[1])
    run.wait_for(lambda: bool(run.events("restarted")), "the restart", timeouts.PROCESS_DEATH_S)
    (failed,) = run.events("first_failure")
    assert (failed["rank"], failed["node_rank"], failed["failure_class"]) == (1, 1, "signal")
    check_end(run, undisturbed_pair, requeued="0")


@pytest.mark.proves(
    "A rank killed by `kill -9` is restarted inside the job, an agent by one requeue; the same bits",
    limits="every process of the attempt gone within 15 s",
)
@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.usefixtures("cold_tasks")
def test_a_killed_agent_ends_the_attempt_and_the_job_is_requeued(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes, node: int
) -> None:
    run = begun(slurm, tmp_path, f"agent-{node}")
    before = {*agents(run.run).values(), *ranks(run.run).values()}
    kill(agents(run.run)[node])
    gone_by = time.monotonic() + timeouts.PROCESS_DEATH_S
    run.wait_for(
        lambda: not alive(before), "the end of every process of the attempt", timeouts.PROCESS_DEATH_S
    )
    assert time.monotonic() < gone_by
    if node == 1:  # node 0 lives to name it
        (failed,) = run.events("first_failure")
        assert failed["failure_class"] == "node_lost"
        assert "node 1 (127.0.0." in failed["message"]
    check_end(run, undisturbed_pair, requeued="1")


@pytest.mark.proves(
    "`kill -9` of an agent before its node has joined: one requeue, counted as a restart",
)
@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.usefixtures("cold_tasks")
def test_an_agent_killed_before_its_node_has_joined_is_requeued(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes, node: int
) -> None:
    run = submit(slurm, tmp_path, f"early-{node}", *TWO_BY_ONE, *SLOWLY, SLOW)
    run.wait_for(lambda: node in agents(run.run), "the agent")
    kill(agents(run.run)[node])
    run.wait_done(within_s=110)
    assert run.job["Restarts"] == "1"
    lost = run.run.control / f"lost-{run.job_id}"
    verdict = run.run.control / f"verdict-{run.job_id}.0"
    counted = lost.exists() or verdict.read_text().split()[0] == "79"
    assert counted, f"{verdict.read_text()}: a preemption, which may happen for ever"
    assert run.hashes == undisturbed_pair


def alive(pids: set[int]) -> set[int]:
    """Those of the processes that have not ended (a zombie has)."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            found.add(pid)
    return found


@pytest.mark.proves(
    "A stopped agent (SIGSTOP) is declared lost within a minute, a node set DOWN is replaced",
)
@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.slow
def test_a_stopped_agent_is_lost_within_the_bound(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes, node: int
) -> None:
    run = begun(slurm, tmp_path, f"still-{node}", "--env", "SLOW_S=0.05")
    before = {*agents(run.run).values(), *ranks(run.run).values()}
    os.kill(agents(run.run)[node], signal.SIGSTOP)
    run.wait_for(lambda: not alive(before), "the end of every process", timeouts.HOST_DEATH_S)
    if node == 1:
        (failed,) = run.events("first_failure")
        assert "no heartbeat" in failed["message"]
    check_end(run, undisturbed_pair, requeued="1")


@pytest.mark.proves(
    "A stopped agent (SIGSTOP) is declared lost within a minute, a node set DOWN is replaced",
)
@pytest.mark.proof
def test_a_node_that_is_set_down_is_replaced(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes
) -> None:
    run = begun(slurm, tmp_path, "down")
    second = run.events("attempt_started")[0]["nodes"][1]["SLURMD_NODENAME"]
    slurm.set_node(second, "DOWN")
    check_end(run, undisturbed_pair, requeued="1")
    assert second not in run.events("attempt_started")[1]["hosts"]


@pytest.mark.proves(
    "A dead slurmd whose processes live on: the job's later start takes the run over",
)
@pytest.mark.proof
@pytest.mark.parametrize("node", [0, 1])
def test_a_dead_slurmd_whose_processes_live_on(
    slurm: SlurmCluster, tmp_path: Path, undisturbed_pair: Hashes, node: int
) -> None:
    """Slurm starts the job elsewhere while the old agent still works: the old one must stop."""
    run = begun(slurm, tmp_path, f"slurmd-{node}", "--env", "SLOW_S=0.05")
    slurm.kill_slurmd(run.events("attempt_started")[0]["nodes"][node]["SLURMD_NODENAME"])
    run.wait_for(lambda: int(run.job["Restarts"]) == 1, "the requeue", within_s=60)
    check_end(run, undisturbed_pair, requeued="1")
