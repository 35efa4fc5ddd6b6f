"""The restart rule: crashes, the restart budget, runs without progress."""

from __future__ import annotations

import pytest

from dist_train.agent.failures.restart_policy import History, decide, decide_stop
from dist_train.rundir.failure import Failure


def failure(cls: str, **more: object) -> Failure:
    return Failure(source="rank", cls=cls, rank=0, **more)  # type: ignore[arg-type]


def test_restart_on_any_insists() -> None:
    past = History(0, (None,), keeps_checkpoints=False)
    assert not decide(failure("exception"), past, 3, "crash", False).restart
    assert decide(failure("exception"), past, 3, "any", False).restart


def test_a_loss_that_is_not_finite_is_never_restarted() -> None:
    past = History(0, (None,), keeps_checkpoints=False)
    ours = Failure(source="dist-train", cls="exception", rank=0, exit_code=73)
    assert (decide(ours, past, 3, "any", False).restart, decide(ours, past, 3, "any", False).exit_code) == (
        False,
        73,
    )
    assert decide(failure("exception", exit_code=73), past, 3, "any", False).restart  # the script's own 73


def test_three_attempts_without_a_newer_step_end_with_76() -> None:
    stuck = decide(failure("signal", exit_code=137), History(2, (7, 7, 7), True), 9, "crash", False)
    assert (stuck.restart, stuck.exit_code) == (False, 76)
    assert "still 7" in stuck.why
    assert decide(failure("signal"), History(2, (7, 7, 14), True), 9, "crash", False).restart


def test_three_stops_without_a_newer_step_end_with_76() -> None:
    again = decide_stop(History(0, (7, 7), keeps_checkpoints=True))
    assert (again.restart, again.exit_code) == (False, 75)
    stuck = decide_stop(History(0, (3, 7, 7, 7), keeps_checkpoints=True))
    assert (stuck.restart, stuck.exit_code) == (False, 76)
    assert stuck.why == "no newer committed step in 3 attempts (still 7)"
    assert decide_stop(History(0, (7, 7, 14), keeps_checkpoints=True)).exit_code == 75
    assert decide_stop(History(0, (None,) * 5, keeps_checkpoints=False)).exit_code == 75


def test_a_run_that_never_commits_is_stuck_too() -> None:
    assert decide_stop(History(0, (None,) * 3, keeps_checkpoints=True)).exit_code == 76


def test_a_plain_script_without_checkpoints_is_restarted_as_often_as_asked() -> None:
    assert decide(failure("signal"), History(5, (None,) * 6, False), 9, "crash", False).restart


@pytest.mark.parametrize(("restarts", "code"), [(0, 79), (1, 69)])
def test_a_lost_node_asks_for_another_start_only_while_restarts_are_left(restarts: int, code: int) -> None:
    lost = Failure(source="dist-train", cls="node_lost", exit_code=79)
    assert decide(lost, History(restarts, (None,), False), 1, "crash", False).exit_code == code
    assert decide(lost, History(0, (None,), False), 0, "crash", False).exit_code == 69
    assert (
        decide(failure("signal", exit_code=79), History(9, (None,), False), 1, "crash", False).exit_code == 79
    )
