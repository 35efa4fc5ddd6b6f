"""Node 0's state machine: start, root cause, verdict; no sockets, no clocks."""

from __future__ import annotations

import pytest

from dist_train.agent.coordination.coordinator import INTERRUPT, Coordinator, Send, Timing
from dist_train.agent.coordination.messages import (
    Bye,
    Join,
    NodeDone,
    NodeFailed,
    NodeStopped,
    RankExited,
    Start,
    StopAsked,
    StopWorkers,
    Verdict,
    Waiting,
)
from dist_train.agent.failures.restart_policy import Decision, History, decide, decide_stop
from dist_train.rundir.failure import Failure
from dist_train.rundir.lost_node import LostNode


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class MemoryRecorder:
    """A recorder in memory that applies the real restart rule."""

    def __init__(self, max_restarts: int = 3) -> None:
        self.max_restarts = max_restarts
        self.attempts = 0
        self.restarts = 0
        self.stops: tuple[int, ...] = ()  # the committed step at each stop
        self.ends: list[tuple[Verdict, Failure | None]] = []

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        self.attempts += 1
        return self.attempts - 1

    def first_failure(self, failure: Failure) -> None:
        self.first = failure

    def decide(self, failure: Failure, stopping: bool) -> Decision:
        history = History(self.restarts, tuple(range(self.restarts + 1)), keeps_checkpoints=True)
        return decide(failure, history, self.max_restarts, "crash", stopping)

    def decide_stop(self) -> Decision:
        return decide_stop(History(self.restarts, self.stops, keeps_checkpoints=True))

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        self.ends.append((verdict, failure))
        self.restarts += verdict.action == "restart"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder() -> MemoryRecorder:
    return MemoryRecorder()


@pytest.fixture
def node0(clock: Clock, recorder: MemoryRecorder) -> Coordinator:
    return Coordinator(
        2, "nonce", recorder, lambda reached: ("127.0.0.1", 29500), clock, Timing(60, 15, 2, 15)
    )


def join(
    node: int, nonce: str = "nonce", machine: str = "here", loopback: str = "", **fingerprint: str
) -> Join:
    facts = {"torch": "2.13.0", **fingerprint}
    return Join(node, f"host{node}", 100 + node, 2, nonce, facts, machine, loopback)


def failed(rank: int, cls: str = "signal", code: int = 137, **more: object) -> dict[str, object]:
    number = 9 if cls == "signal" else None
    return Failure(
        source="rank",
        cls=cls,  # type: ignore[arg-type]
        rank=rank,
        node_rank=rank // 2,
        exit_code=code,
        signal=number,
        **more,  # type: ignore[arg-type]
    ).to_record()


def started(node0: Coordinator) -> list[Send]:
    assert node0.receive(0, join(0)) == []
    return node0.receive(1, join(1))


def test_an_attempt_starts_when_all_nodes_have_joined(node0: Coordinator) -> None:
    assert started(node0) == [(n, Start(0, "127.0.0.1", 29500)) for n in (0, 1)]


def test_missing_nodes_are_named_every_15_s_and_given_up_at_the_deadline(
    node0: Coordinator, clock: Clock
) -> None:
    node0.receive(0, join(0))
    clock.now += 14
    assert node0.tick() == []
    clock.now += 1
    sends = node0.tick()
    assert sends[0] == (0, Waiting("node 1", "node 0 (host0)", 15.0))
    clock.now += 44
    assert not any(isinstance(message, Verdict) for _, message in node0.tick())
    clock.now += 1
    [(_, verdict), *_] = node0.tick()
    assert isinstance(verdict, Verdict)
    assert (verdict.action, verdict.exit_code) == ("exit", 69)
    assert "node 1 never came in 60 s; here: node 0 (host0)" in verdict.why
    assert node0.finished, "it does not wait for the Bye of a node that never came"


def test_a_run_directory_that_is_not_shared_is_refused(node0: Coordinator) -> None:
    node0.receive(0, join(0))
    [(_, verdict), *_] = node0.receive(1, join(1, nonce=""))
    assert isinstance(verdict, Verdict)
    assert verdict.exit_code == 78
    assert "not shared by node 1 (host1)" in verdict.why


def test_nodes_that_differ_are_refused_and_the_odd_one_is_named(node0: Coordinator) -> None:
    node0.receive(0, join(0))
    [(_, verdict), *_] = node0.receive(1, join(1, torch="2.12.0"))
    assert isinstance(verdict, Verdict)
    assert verdict.exit_code == 78
    assert "node 1 (host1) differs from node 0: torch: 2.12.0 there, 2.13.0 on node 0" in verdict.why


def test_a_loopback_name_is_refused_where_machines_differ(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    node0.receive(0, join(0, machine="gpu01"))
    [(_, verdict), *_] = node0.receive(1, join(1, machine="gpu02", loopback="127.0.1.1"))
    assert isinstance(verdict, Verdict)
    assert verdict.exit_code == 78
    assert "gpu02 -> 127.0.1.1 on node 1" in verdict.why
    assert "--interface NAME or CIDR" in verdict.why
    assert recorder.attempts == 0, "no attempt was begun"


@pytest.mark.parametrize(
    ("machines", "loopback"), [(("gpu01", "gpu01"), "127.0.1.1"), (("gpu01", "gpu02"), "")]
)
def test_one_machine_may_call_itself_loopback(
    node0: Coordinator, machines: tuple[str, str], loopback: str
) -> None:
    for node, machine in enumerate(machines):
        sends = node0.receive(node, join(node, machine=machine, loopback=loopback))
    assert [type(message) for _, message in sends] == [Start, Start]


def test_the_first_failure_is_sent_to_all_nodes_at_once(node0: Coordinator) -> None:
    started(node0)
    sends = node0.receive(1, NodeFailed(1, [failed(3)], 0))
    assert [type(message) for _, message in sends] == [StopWorkers, StopWorkers]


def test_the_killed_rank_is_the_root_cause_though_secondary_failures_came_first(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    started(node0)
    node0.receive(0, NodeFailed(0, [failed(0, "victim", 1), failed(1, "victim", 1)], 0))
    node0.receive(0, NodeStopped(0, [], 0))
    node0.receive(1, NodeStopped(1, [failed(3)], 0))
    verdict, failure = recorder.ends[-1]
    assert (verdict.action, verdict.exit_code) == ("restart", 137)
    assert failure is not None
    assert (failure.rank, failure.secondary_failures) == (3, (0, 1))


def test_node_0_waits_two_seconds_for_reports_not_longer(
    node0: Coordinator, clock: Clock, recorder: MemoryRecorder
) -> None:
    started(node0)
    node0.receive(0, NodeFailed(0, [failed(0)], 0))
    clock.now += 1.9
    assert node0.tick() == []
    clock.now += 0.2
    assert [type(message) for _, message in node0.tick()] == [Verdict, Verdict]
    assert recorder.ends


def test_an_early_exit_with_0_is_the_root_cause_when_all_others_are_secondary(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    started(node0)
    node0.receive(0, RankExited(0, 1, 0, 0))
    node0.receive(0, NodeFailed(0, [failed(0, "victim", 1)], 0))
    node0.receive(0, NodeStopped(0, [], 0))
    node0.receive(1, NodeStopped(1, [failed(2, "victim", 1)], 0))
    verdict, failure = recorder.ends[-1]
    assert failure is not None
    assert (failure.cls, failure.rank, failure.host, failure.local_rank) == ("early_exit", 1, "host0", 1)
    assert (verdict.action, verdict.exit_code) == ("exit", 1)


def test_an_exception_is_not_restarted(node0: Coordinator, recorder: MemoryRecorder) -> None:
    started(node0)
    node0.receive(0, NodeFailed(0, [failed(0, "exception", 3)], 0))
    node0.receive(0, NodeStopped(0, [], 0))
    node0.receive(1, NodeStopped(1, [], 0))
    assert (recorder.ends[-1][0].action, recorder.ends[-1][0].exit_code) == ("exit", 3)


def test_a_lost_node_ends_the_attempt_for_all_with_79(
    node0: Coordinator, clock: Clock, recorder: MemoryRecorder
) -> None:
    started(node0)
    node0.receive(0, NodeFailed(0, [failed(0, "victim", 1)], 0))
    node0.lost(1, "its agent's connection closed")
    node0.receive(0, NodeStopped(0, [], 0))
    verdict, failure = recorder.ends[-1]
    assert (verdict.action, verdict.exit_code) == ("exit", 79)
    assert failure is not None
    assert (failure.cls, failure.node_rank, failure.host) == ("node_lost", 1, "host1")


def test_restarts_are_counted_over_the_whole_run(node0: Coordinator, recorder: MemoryRecorder) -> None:
    recorder.max_restarts = 2
    for attempt in range(3):
        started(node0)
        node0.receive(0, NodeFailed(0, [failed(0)], attempt))
        node0.receive(0, NodeStopped(0, [], attempt))
        node0.receive(1, NodeStopped(1, [], attempt))
    assert [verdict.action for verdict, _ in recorder.ends] == ["restart", "restart", "exit"]
    assert recorder.ends[-1][0].exit_code == 137


@pytest.mark.parametrize(
    ("codes", "exit_code"), [((0, 0), 0), ((75, 75), 75), ((0, 75), 75), ((143, 143), 143)]
)
def test_a_good_end_is_that_of_all_nodes(
    node0: Coordinator, recorder: MemoryRecorder, codes: tuple[int, int], exit_code: int
) -> None:
    started(node0)
    assert node0.receive(0, NodeDone(0, {"0": codes[0], "1": codes[0]}, 0)) == []
    node0.receive(1, NodeDone(1, {"2": codes[1], "3": codes[1]}, 0))
    assert recorder.ends[-1][0].exit_code == exit_code


@pytest.mark.parametrize(("stops", "exit_code"), [((7,), 75), ((7, 7, 7), 76), ((5, 6, 7), 75)])
def test_a_stop_is_75_or_76_where_stopping_has_not_helped(
    node0: Coordinator, recorder: MemoryRecorder, stops: tuple[int, ...], exit_code: int
) -> None:
    recorder.stops = stops
    started(node0)
    node0.receive(1, StopAsked(1, "terminated"))
    for node in (0, 1):
        node0.receive(node, NodeDone(node, {str(node): 75}, 0))
    assert recorder.ends[-1][0].exit_code == exit_code


@pytest.mark.parametrize(("reason", "exit_code"), [("terminated", 76), ("cancel", 77)])
def test_a_stop_while_nodes_are_still_missing(
    node0: Coordinator, recorder: MemoryRecorder, reason: str, exit_code: int
) -> None:
    recorder.stops = (7, 7, 7)
    node0.receive(0, join(0))
    node0.receive(0, StopAsked(0, reason))
    assert recorder.ends[-1][0].exit_code == exit_code


def test_a_cancel_ends_with_77(node0: Coordinator, recorder: MemoryRecorder) -> None:
    started(node0)
    assert [node for node, _ in node0.receive(0, StopAsked(0, "cancel"))] == [0, 1]
    for node in (0, 1):
        node0.receive(node, NodeDone(node, {str(node): 75}, 0))
    assert recorder.ends[-1][0].exit_code == 77


def test_a_failure_while_stopping_is_not_restarted(node0: Coordinator, recorder: MemoryRecorder) -> None:
    started(node0)
    node0.receive(0, StopAsked(0, "terminated"))
    node0.receive(0, NodeFailed(0, [failed(0)], 0))
    node0.receive(0, NodeStopped(0, [], 0))
    node0.receive(1, NodeStopped(1, [], 0))
    assert (recorder.ends[-1][0].action, recorder.ends[-1][0].exit_code) == ("exit", 137)


def test_node_0_stays_until_all_have_read_the_verdict(node0: Coordinator, clock: Clock) -> None:
    started(node0)
    for node in (0, 1):
        node0.receive(node, NodeDone(node, {str(node): 0}, 0))
    assert not node0.finished
    node0.receive(1, Bye(1))
    assert node0.finished
    assert node0.lost(1, "gone") == []


def test_node_0_does_not_stay_for_ever(node0: Coordinator, clock: Clock) -> None:
    started(node0)
    for node in (0, 1):
        node0.receive(node, NodeDone(node, {str(node): 0}, 0))
    clock.now += 15.1
    assert node0.finished


def test_an_agent_that_died_before_it_had_connected_is_lost_as_any_other(
    node0: Coordinator, clock: Clock, recorder: MemoryRecorder
) -> None:
    """Only its parent knows: no connection of it can close."""
    node0.receive(0, join(0))
    assert node0.agent_ended(LostNode(1, -9))
    clock.now += 2.1
    node0.tick()
    verdict, failure = recorder.ends[-1]
    assert (verdict.exit_code, node0.phase) == (79, "over")
    assert failure is not None
    assert failure.message == "node 1 (unknown host) is gone: its agent was killed by signal 9"


def test_an_agent_that_left_with_a_code_before_it_had_joined_ends_the_run_with_it(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    node0.receive(0, join(0))
    node0.agent_ended(LostNode(1, 78))
    verdict, _ = recorder.ends[-1]
    assert (verdict.action, verdict.exit_code) == ("exit", 78)
    assert verdict.why == "node 1 did not join: its agent left with exit code 78"


def test_the_parents_word_and_the_closed_connection_count_once(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    started(node0)
    assert node0.lost(1, "its connection closed")
    assert node0.agent_ended(LostNode(1, -9)) == []


@pytest.mark.parametrize(("reason", "code"), [(INTERRUPT, 130), ("terminated", 143)])
def test_a_script_that_reads_no_stop_flag_ends_by_ctrl_c_or_by_term(
    node0: Coordinator, recorder: MemoryRecorder, reason: str, code: int
) -> None:
    started(node0)
    node0.receive(0, StopAsked(0, reason))
    for node in (0, 1):
        node0.receive(node, NodeDone(node, {str(node): 143}, 0))
    assert recorder.ends[-1][0].exit_code == code
