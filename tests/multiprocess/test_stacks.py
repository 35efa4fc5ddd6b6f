"""`dist-train stacks` of running jobs: what each rank does, who does not answer, and the same bits."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Launch, begin, wait_for, wait_for_step
from warm_commands.warm_launch import launch_cli

from dist_train.rundir import RunDir
from dist_train.rundir.requests.stacks_request import RankStacks, ask_and_wait
from dist_train.rundir.result import read_result
from dist_train.testing import CliResult

pytestmark = pytest.mark.multiprocess
# Digits with dropout and two loader workers per rank.
SLOW = Path(__file__).parents[1] / "slurm" / "workloads" / "slow.yaml"

# Each rank in another state; none of them imports torch.
STATES = """
import ctypes, os, signal, threading, time
rank = int(os.environ["RANK"])

def wait_for_batch():
    time.sleep(600)

def hold_the_interpreter():
    ctypes.PyDLL(None).sleep(600)

threading.Thread(target=wait_for_batch, name="prefetch", daemon=True).start()
open(f"began-{rank}", "w").close()
if rank == 0:
    wait_for_batch()
elif rank == 1:
    hold_the_interpreter()
elif rank == 2:
    os.kill(os.getpid(), signal.SIGSTOP)
else:
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    wait_for_batch()
"""


def stacks(folder: Path, *words: str) -> CliResult:
    return launch_cli(["stacks", *words], cwd=folder, timeout_s=90)


def ask_at_once(run: RunDir, people: int) -> list[list[RankStacks]]:
    """What each of them is told of rank 0."""
    with ThreadPoolExecutor(people) as pool:
        return [one.result() for one in [pool.submit(ask_and_wait, run, {0}, [0]) for _ in range(people)]]


@contextmanager
def running(folder: Path, name: str, *words: object) -> Iterator[RunDir]:
    """A job in the background, ended at the end of the block."""
    command = begin(folder, name, *words)
    try:
        yield RunDir(folder / "runs" / name)
    finally:
        for number in (signal.SIGINT, signal.SIGINT):
            command.send_signal(number)
            time.sleep(0.5)
        command.wait(60)


def test_every_rank_says_where_it_is_or_why_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STATES)
    with running(tmp_path, "four", "--nodes", 2, "--gpus-per-node", 2, "train.py"):
        wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 4, "four ranks")
        time.sleep(0.5)
        done = stacks(tmp_path, "four", "--json")
        whole = {one["rank"]: one for one in json.loads(done.stdout)["ranks"]}
        assert done.code == 69, "a rank did not answer"
        first, held, stopped, cleared = (whole[rank] for rank in range(4))
        main, prefetch = first["text"].split("Thread prefetch:")
        assert main.startswith("Thread MainThread:")
        assert "in wait_for_batch\n    time.sleep(600)" in main
        assert "in wait_for_batch" in prefetch
        assert "in <module>\n    wait_for_batch()" in main
        assert "worker_main" not in main, "without the agent's own calls"
        assert "in hold_the_interpreter" in held["text"]
        assert "C code holds its interpreter" in held["how"]
        assert "MainThread" not in held["text"], "it has not been woken up"
        assert (stopped["text"], stopped["problem"]) == (None, "it is stopped (SIGSTOP)")
        assert "in wait_for_batch" in cleared["text"], "also where the script has set its signals"
        one = stacks(tmp_path, "--rank", "0")
        assert one.code == 0, one
        assert one.stdout.startswith("rank 0 ("), one
        assert "hold_the_interpreter" not in one.stdout
        five = ask_at_once(RunDir(tmp_path / "runs" / "four"), 5)
        assert [[one.text for one in found] for found in five] == [[first["text"]]] * 5, "each is answered"
        assert not list((tmp_path / "runs" / "four" / "control").glob("stacks*")), "nothing is left"
        log = (tmp_path / "runs" / "four" / "logs" / "attempt-0" / "rank-0.log").read_text()
        assert "wait_for_batch" not in log, "stacks are no output of the rank"


@pytest.mark.proof
@pytest.mark.proves("`dist-train stacks` changes no bit of a run", limits="CPU; 2 x 2 ranks, loader workers")
def test_a_run_that_is_asked_again_and_again_has_the_same_bits(tmp_path: Path, launch: Launch) -> None:
    words = ("--nodes", 2, "--gpus-per-node", 2, "--env", "SLOW_S=0.0125", SLOW)
    undisturbed = launch("undisturbed", *words).hashes
    command = begin(tmp_path, "asked", *words)
    run = RunDir(tmp_path / "runs" / "asked")
    wait_for_step(run, 1)
    answers = []
    while command.poll() is None:
        answers.append(stacks(tmp_path, "asked"))
    assert command.wait(60) == 0
    result = read_result(run)
    assert result is not None
    assert (result.weights_hash, result.state_hash, result.metrics_hash) == undisturbed
    good = [answer for answer in answers if answer.code == 0]
    assert good, answers
    assert any("run_training" in answer.stdout for answer in good), good[0]


def test_a_run_that_has_ended_has_no_ranks(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "train.py").write_text("print('done')")
    assert launch("short", "train.py").cli.code == 0
    done = stacks(tmp_path, "short")
    assert (done.code, done.stdout) == (66, ""), done
    assert "no rank of short runs: it is done" in done.stderr


@pytest.mark.proof
def test_nobody_is_waited_for_longer_than_the_bound(tmp_path: Path) -> None:
    """An agent that is stopped answers nothing: its ranks are named, the others are printed."""
    (tmp_path / "train.py").write_text("import time\nopen('began-0', 'w').close()\ntime.sleep(600)")
    with running(tmp_path, "one", "train.py") as run:
        wait_for(lambda: (tmp_path / "began-0").exists(), "the rank")
        agent = int(json.loads(run.lease.read_text())["pid"])
        os.kill(agent, signal.SIGSTOP)
        try:
            began = time.monotonic()
            done = stacks(tmp_path, "one")
            assert time.monotonic() - began < 60
        finally:
            os.kill(agent, signal.SIGCONT)
        assert done.code == 69, done
        assert "rank 0: the agent of its node has not answered" in done.stdout
