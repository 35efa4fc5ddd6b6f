"""Which of several failures is the root cause, and which failures a restart can help."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace

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


def test_the_rank_that_failed_comes_before_those_that_repeat_its_error() -> None:
    own = failure("exception", 2, message="ValueError: my buffer is locked")
    said = [
        failure("exception", rank, message="RuntimeError: on rank 2: ValueError: my buffer is locked")
        for rank in (0, 1)
    ]
    assert choose_root_cause([*said, own]) == replace(own, secondary_failures=(0, 1))
    assert choose_root_cause(said).rank == 0


def network_error(rank: int) -> Failure:
    """A program's own error, in words that also fit a lost peer."""
    return failure("exception", rank, exception="OSError", message="OSError: connection refused: https://s3")


@pytest.mark.parametrize("cls", ["exception", "signal", "node_lost", "hang"])
def test_a_broken_connection_is_secondary_to_any_other_failure(cls: str) -> None:
    other = failure(cls, None if cls == "node_lost" else 2, message="true cause")
    assert choose_root_cause([network_error(1), other]) == replace(other, secondary_failures=(1,))


def test_a_broken_connection_alone_is_the_programs_own_error() -> None:
    """It is not restarted, and neither a rank that has left nor the ranks that missed it are its cause."""
    alone = choose_root_cause([network_error(1)])
    assert (alone.rank, is_crash(alone)) == (1, False)
    root_cause = choose_root_cause([failure("victim", 0), network_error(1)], exited_early={2: 0})
    assert (root_cause.rank, root_cause.cls, root_cause.secondary_failures) == (1, "exception", (0,))


def test_a_last_line_about_a_connection_counts_like_an_exception() -> None:
    ended = failure("exit", 1, message="exited with code 1", log_tail=("Broken pipe",))
    assert choose_root_cause([ended, failure("exit", 2, message="exited with code 3")]).rank == 2
    assert not is_crash(choose_root_cause([ended]))


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
