"""Which of several failures is the root cause, and which failures a restart can help."""

from __future__ import annotations

import itertools
import signal

import pytest

from dist_train.agent.failures.root_cause import choose_root_cause, is_crash
from dist_train.rundir.failure import Failure


def failure(cls: str, rank: int | None = 0, **more: object) -> Failure:
    return Failure(source="rank", cls=cls, rank=rank, **more)  # type: ignore[arg-type]


def test_the_class_decides_which_failure_is_the_root_cause() -> None:
    order = ["signal", "exception", "early_exit", "hang", "node_lost", "victim"]
    for worse, better in itertools.pairwise(order):
        root_cause = choose_root_cause([failure(better, 1, exit_code=1), failure(worse, 2, exit_code=1)])
        assert root_cause.cls == worse


def test_an_abort_of_a_peer_does_not_hide_the_exception() -> None:
    abort = failure("signal", 1, signal=int(signal.SIGABRT))
    assert choose_root_cause([abort, failure("exception", 2)]).rank == 2


def test_order_of_arrival_breaks_ties() -> None:
    assert choose_root_cause([failure("exception", 5), failure("exception", 2)]).rank == 5


@pytest.mark.parametrize(
    ("cls", "crash"),
    [
        ("signal", True),
        ("node_lost", True),
        ("hang", True),
        ("victim", True),
        ("exception", False),
        ("exit", False),
    ],
)
def test_which_failures_are_crashes(cls: str, crash: bool) -> None:
    assert is_crash(failure(cls)) is crash
