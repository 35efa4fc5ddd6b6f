"""Stopping: one rank's flag stops all ranks at the same step."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import dist_train as dt
from dist_train.distributed.control_group import Control
from dist_train.env import ATTEMPT, NNODES, NODE_RANK, RUN_ID, STOP_FILE
from dist_train.resilience.stop import StopFlag, StopVote


def test_the_flag_follows_its_file_and_a_missing_file_means_go_on(tmp_path: Path) -> None:
    path = tmp_path / "stop"
    flag = StopFlag(path)
    assert flag.read() == 0
    path.write_bytes(b"")
    assert flag.read() == 0
    path.write_bytes(b"\0")
    assert flag.read() == 0
    with path.open("r+b") as file:
        file.write(b"\1")
    assert flag.read() == 1


def test_signals_count_from_the_first_vote_and_a_second_one_is_passed_on() -> None:
    received: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: received.append(number))
    flag = StopFlag()
    vote = StopVote(Control(), flag)
    try:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert received == [signal.SIGUSR2], "no vote yet: the signal goes to the handler of before"
        assert not vote.agreed()
        os.kill(os.getpid(), signal.SIGUSR2)
        assert len(received) == 1
        assert vote.agreed(step=7)
        assert vote.agreed(), "for good"
        os.kill(os.getpid(), signal.SIGUSR2)
        assert len(received) == 2
    finally:
        flag.close()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.signal(signal.SIGUSR2, before)


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _votes(step_s: float, steps: int, every: int | None = None) -> list[int]:
    """At which calls a vote is taken when a step lasts step_s seconds."""
    clock = _Clock()
    vote = StopVote(Control(), StopFlag(Path("/nonexistent")), every, clock)
    found = []
    for step in range(steps):
        before = vote.votes
        assert not vote.agreed()
        found += [step] if vote.votes > before else []
        clock.now += step_s
    return found


def test_votes_come_about_twice_a_second_and_at_least_every_16_steps() -> None:
    assert _votes(0.048, 30) == [0, 1, 3, 7, 15, 25]
    assert _votes(0.001, 50) == [0, 1, 3, 7, 15, 31, 47]
    assert _votes(2.0, 5) == [0, 1, 2, 3, 4]
    assert _votes(0.05, 30, every=9) == [0, 9, 18, 27]


def test_a_slow_step_makes_votes_frequent_at_once_and_gradually_rare_again() -> None:
    clock = _Clock()
    vote = StopVote(Control(), StopFlag(Path("/nonexistent")), None, clock)
    places = []
    for step in range(60):
        before = vote.votes
        vote.agreed()
        places += [step] if vote.votes > before else []
        clock.now += 60.0 if step == 5 else 0.05
    assert places == [0, 1, 3, 7, 8, 10, 14, 22, 32, 42, 52]


def test_prefetched_batches_do_not_make_a_stop_of_slow_steps_late() -> None:
    """Seen on Slurm: three quick steps put the next vote 100 slow steps later, and the grace ran out."""
    clock = _Clock()
    vote = StopVote(Control(), StopFlag(Path("/nonexistent")), None, clock)
    waits, waited_s = [], 0.0
    for step in range(200):
        before = vote.votes
        vote.agreed()
        if vote.votes > before:
            waits, waited_s = [*waits, waited_s], 0.0
        step_s = 0.002 if step < 40 else 1.6
        clock.now += step_s
        waited_s += step_s
    assert max(waits) <= 16 * 1.6
    assert max(waits[-20:]) == 1.6


@pytest.mark.multiprocess
def test_one_ranks_flag_stops_all_ranks_at_the_same_step(ranks: Any, tmp_path: Path) -> None:
    def train(meeting: str) -> int:
        rank = int(os.environ["RANK"])
        # As our agent starts it; each rank has a file here, so that only rank 2's is set.
        stop_file = tmp_path / f"stop-{rank}"
        stop_file.write_bytes(b"\0")
        os.environ |= {RUN_ID: "r", ATTEMPT: "0", NODE_RANK: "0", NNODES: "1", STOP_FILE: str(stop_file)}
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            for step in range(100_000):
                if run.should_stop():
                    assert run.should_stop()
                    return step
                if step == 50 and rank == 2:
                    stop_file.write_bytes(b"\1")
        return -1

    steps = ranks(4, train)
    assert len(set(steps)) == 1
    assert steps[0] > 50


@pytest.mark.multiprocess
def test_a_signal_to_one_rank_stops_all_under_a_foreign_launcher(ranks: Any) -> None:
    def train(meeting: str) -> list[int]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            for step in range(100_000):
                if run.should_stop():
                    return [step, run.seed]
                if step == 10 and run.rank == 1:
                    os.kill(os.getpid(), signal.SIGTERM)
        return [-1, -1]

    answers = ranks(3, train)
    assert len({answer[0] for answer in answers}) == 1
    assert answers[0][0] > 10
