"""The pure rules: who is guilty, what is restarted, what is shown."""

from __future__ import annotations

import io
import itertools
import signal
import time

import pytest

from dist_train.agent.blame import choose, is_crash, is_peer_symptom
from dist_train.agent.console import Console
from dist_train.agent.messages import Join, StopAsked, decode, encode
from dist_train.agent.policy import History, decide, decide_stop
from dist_train.rundir.failure import Failure


def failure(cls: str, rank: int | None = 0, **more: object) -> Failure:
    return Failure(source="rank", cls=cls, rank=rank, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("exception", "message", "victim"),
    [
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        ("RuntimeError", "Read error [127.0.0.1]:1: Connection reset by peer", True),
        ("DistNetworkError", "failed to recv, got 0 bytes", True),
        ("DistBackendError", "NCCL error", True),
        ("RuntimeError", "Timed out waiting 8000ms for recv operation to complete", True),
        ("ValueError", "true cause", False),
        ("RuntimeError", "CUDA out of memory", False),
        (None, "Segmentation fault", False),
    ],
)
def test_what_only_says_that_somebody_else_is_gone(exception: str | None, message: str, victim: bool) -> None:
    assert is_peer_symptom(exception, message) is victim


def test_death_by_signal_beats_exception_beats_lost_node_beats_victim() -> None:
    order = ["signal", "exception", "early_exit", "hang", "node_lost", "victim"]
    for worse, better in itertools.pairwise(order):
        guilty = choose([failure(better, 1, exit_code=1), failure(worse, 2, exit_code=1)])
        assert guilty.cls == worse


def test_an_abort_of_a_peer_does_not_hide_the_exception() -> None:
    abort = failure("signal", 1, signal=int(signal.SIGABRT))
    assert choose([abort, failure("exception", 2)]).rank == 2


def test_order_of_arrival_breaks_ties() -> None:
    assert choose([failure("exception", 5), failure("exception", 2)]).rank == 5


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
def test_what_a_restart_can_mend(cls: str, crash: bool) -> None:
    assert is_crash(failure(cls)) is crash


def test_restart_on_any_insists() -> None:
    past = History(0, (None,), keeps_checkpoints=False)
    assert not decide(failure("exception"), past, 3, "crash", False).restart
    assert decide(failure("exception"), past, 3, "any", False).restart


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


def test_messages_survive_the_wire() -> None:
    for message in (Join(1, "h", 2, 2, "n", {"a": "b"}), StopAsked(0, "cancel")):
        assert decode(encode(message).rstrip(b"\n")) == message
    with pytest.raises(ValueError, match="not a message"):
        decode(b"GET / HTTP/1.1")


def shown(lines: list[tuple[int, bool, str]], show: str = "0") -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    console = Console("gpu01", show, out, err)
    for rank, is_stderr, text in lines:
        console.line(rank, is_stderr, text)
    console.flush()
    return out.getvalue(), err.getvalue()


def test_rank_0s_stdout_is_shown_as_it_is_and_the_others_not() -> None:
    assert shown([(0, False, "epoch 1"), (1, False, "epoch 1")])[0] == "epoch 1\n"
    assert shown([(0, False, "a"), (3, False, "b")], "all")[0] == "[rank 0 gpu01] a\n[rank 3 gpu01] b\n"


def test_the_same_line_of_several_ranks_is_shown_once() -> None:
    lines = [(rank, True, "warning: slow") for rank in (1, 2, 3)]
    assert shown(lines)[1] == "[ranks 1-3 gpu01] warning: slow\n"


def test_folding_keeps_each_ranks_order_and_its_own_repetitions() -> None:
    lines = [(0, True, "a"), (0, True, "b"), (0, True, "a"), (1, True, "a"), (1, True, "b")]
    assert shown(lines)[1].splitlines() == [
        "[ranks 0-1 gpu01] a",
        "[ranks 0-1 gpu01] b",
        "[rank 0 gpu01] a",
    ]


def test_a_held_line_is_shown_after_a_second() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console("h", "0", out, err)
    console.line(2, True, "x")
    console.tick()
    assert err.getvalue() == ""
    time.sleep(1.05)
    console.tick()
    assert err.getvalue() == "[rank 2 h] x\n"
