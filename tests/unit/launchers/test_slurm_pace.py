"""How often Slurm is asked: at first every 2 s, then ever more seldom, anew when something happens."""

from __future__ import annotations

import itertools

import pytest

from dist_train.jobs import JobHandle
from launchers._slurm.pace import Pace
from launchers._slurm.queries import Answer, Sighting

JOB = JobHandle("slurm:12")


class Slurm:
    """Counts the questions, at which second each came, and answers as it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[float] = []
        self.state = "PENDING"

    def look(self, handle: JobHandle) -> Answer:
        assert handle == JOB
        self.asked.append(self.now)
        return Answer(Sighting("squeue", self.state))

    def clock(self) -> float:
        return self.now

    @property
    def waits(self) -> list[float]:
        return [round(later - earlier, 1) for earlier, later in itertools.pairwise(self.asked)]


@pytest.fixture
def slurm() -> Slurm:
    return Slurm()


@pytest.fixture
def pace(slurm: Slurm) -> Pace:
    return Pace(slurm.look, slurm.clock)


def follow(pace: Pace, slurm: Slurm, seconds: float, happened: object = None) -> None:
    """Ask five times a second, as the follower does."""
    for _ in range(round(seconds * 5)):
        slurm.now += 0.2
        pace.ask(JOB, happened)


def test_the_first_question_is_asked_at_once(pace: Pace, slurm: Slurm) -> None:
    assert pace.ask(JOB) == Answer(Sighting("squeue", "PENDING"))
    assert pace.ask(JOB) == Answer(Sighting("squeue", "PENDING"))
    assert slurm.asked == [1000.0]


def test_from_2_s_to_60_s_while_nothing_changes(pace: Pace, slurm: Slurm) -> None:
    follow(pace, slurm, 600)
    assert slurm.waits[0] == pytest.approx(2.0, abs=0.3)
    assert slurm.waits == sorted(slurm.waits)
    assert slurm.waits[-1] == pytest.approx(60.0, abs=0.3)
    assert len(slurm.asked) < 20, "of 3000"


def test_an_answer_that_changed_is_followed_closely_again(pace: Pace, slurm: Slurm) -> None:
    follow(pace, slurm, 300)
    slurm.state = "RUNNING"
    follow(pace, slurm, 65)
    assert min(slurm.waits[-6:]) == pytest.approx(2.0, abs=0.3)


def test_when_the_run_itself_has_news_it_is_asked_within_2_s(pace: Pace, slurm: Slurm) -> None:
    follow(pace, slurm, 300)
    before = slurm.now
    slurm.asked.clear()
    follow(pace, slurm, 5, happened="agent 0 has left")
    assert slurm.asked[0] - before <= 2.3
    assert len(slurm.asked) >= 2, "and soon again"


def test_news_do_not_make_it_ask_more_often_than_every_2_s(pace: Pace, slurm: Slurm) -> None:
    for number in range(100):
        slurm.now += 0.2
        pace.ask(JOB, number)
    assert min(slurm.waits) >= 1.9
