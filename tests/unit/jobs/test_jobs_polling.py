"""How often a scheduler is queried: every 2 s at first, then less often, and again after a change."""

from __future__ import annotations

import itertools

import pytest

from dist_train.jobs import JobHandle
from dist_train.jobs.polling import Pace

JOB = JobHandle("slurm:12")


class Scheduler:
    """Records the second of each query, and returns the given answer."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[float] = []
        self.state = "PENDING"

    def look(self, handle: JobHandle) -> str:
        assert handle == JOB
        self.asked.append(self.now)
        return self.state

    def clock(self) -> float:
        return self.now

    @property
    def waits(self) -> list[float]:
        return [round(later - earlier, 1) for earlier, later in itertools.pairwise(self.asked)]


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def pace(scheduler: Scheduler) -> Pace[str]:
    return Pace(scheduler.look, scheduler.clock)


def follow(pace: Pace[str], scheduler: Scheduler, seconds: float, happened: object = None) -> None:
    """Query five times a second, as the follower does."""
    for _ in range(round(seconds * 5)):
        scheduler.now += 0.2
        pace.ask(JOB, happened)


def test_the_first_query_is_made_at_once(pace: Pace[str], scheduler: Scheduler) -> None:
    assert pace.ask(JOB) == "PENDING"
    assert pace.ask(JOB) == "PENDING"
    assert scheduler.asked == [1000.0]


def test_from_2_s_to_60_s_while_nothing_changes(pace: Pace[str], scheduler: Scheduler) -> None:
    follow(pace, scheduler, 600)
    assert scheduler.waits[0] == pytest.approx(2.0, abs=0.3)
    assert scheduler.waits == sorted(scheduler.waits)
    assert scheduler.waits[-1] == pytest.approx(60.0, abs=0.3)
    assert len(scheduler.asked) < 20, "of 3000"


def test_an_answer_that_changed_is_followed_closely_again(pace: Pace[str], scheduler: Scheduler) -> None:
    follow(pace, scheduler, 300)
    scheduler.state = "RUNNING"
    follow(pace, scheduler, 65)
    assert min(scheduler.waits[-6:]) == pytest.approx(2.0, abs=0.3)


def test_after_a_change_of_the_records_it_is_queried_within_2_s(
    pace: Pace[str], scheduler: Scheduler
) -> None:
    follow(pace, scheduler, 300)
    before = scheduler.now
    scheduler.asked.clear()
    follow(pace, scheduler, 5, happened="agent 0 has left")
    assert scheduler.asked[0] - before <= 2.3
    assert len(scheduler.asked) >= 2, "and soon again"


def test_changes_cause_no_query_more_often_than_every_2_s(pace: Pace[str], scheduler: Scheduler) -> None:
    for number in range(100):
        scheduler.now += 0.2
        pace.ask(JOB, number)
    assert min(scheduler.waits) >= 1.9


def test_an_expected_change_resets_the_interval(pace: Pace[str], scheduler: Scheduler) -> None:
    follow(pace, scheduler, 300)
    scheduler.asked.clear()
    pace.hurry()
    follow(pace, scheduler, 5)
    assert len(scheduler.asked) >= 2
