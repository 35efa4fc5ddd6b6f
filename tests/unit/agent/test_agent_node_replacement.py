"""Nodes join one by one where the cluster replaces them: one that leaves while others wait ends nothing."""

from __future__ import annotations

import pytest

from dist_train.agent.coordination.coordinator import CANCEL, Coordinator, Timing
from dist_train.agent.coordination.messages import (
    Bye,
    Join,
    Message,
    NodeFailed,
    NodeStopped,
    Start,
    StopAsked,
    Verdict,
)
from dist_train.agent.failures.restart_policy import Decision
from dist_train.rundir.failure import Failure


class MemoryRecorder:
    """A recorder in memory: the first failure of a rank is restarted, a lost node is not."""

    def __init__(self) -> None:
        self.attempts = 0

    def begin_attempt(self, nodes: list[dict[str, str]], fingerprint: dict[str, str]) -> int:
        self.attempts += 1
        return self.attempts - 1

    def first_failure(self, failure: Failure) -> None:
        pass

    def decide(self, failure: Failure, stopping: bool) -> Decision:
        return Decision(failure.cls == "signal", failure.exit_code, "why")

    def decide_stop(self) -> Decision:
        return Decision(False, 75, "stopped")

    def ended(self, verdict: Verdict, failure: Failure | None) -> None:
        self.last = verdict


@pytest.fixture
def recorder() -> MemoryRecorder:
    return MemoryRecorder()


@pytest.fixture
def node0(recorder: MemoryRecorder) -> Coordinator:
    timing = Timing(60, 15, 2, 15)
    return Coordinator(
        3, "n", recorder, lambda reached: ("10.0.0.1", 29500), lambda: 100.0, timing, replaces_nodes=True
    )


def join(node: int, host: str = "") -> Join:
    return Join(node, host or f"train-{node}", 1, 1, "n", {})


def gathered(node0: Coordinator, *nodes: int) -> list[Message]:
    """The messages for node 0 itself when these have joined."""
    sends = [send for node in nodes for send in node0.receive(node, join(node))]
    return [message for to, message in sends if to == 0]


def test_a_node_that_is_lost_while_the_others_gather_is_waited_for(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    assert gathered(node0, 0, 1) == []
    assert node0.lost(1, "gone") == []
    assert node0.phase == "joining"
    assert gathered(node0, 2) == [], "node 1 is missing again"
    [start] = gathered(node0, 1)
    assert isinstance(start, Start)
    assert recorder.attempts == 1


def test_where_nodes_are_not_replaced_the_loss_ends_the_attempt(recorder: MemoryRecorder) -> None:
    node0 = Coordinator(3, "n", recorder, lambda reached: ("10.0.0.1", 29500), lambda: 100.0)
    gathered(node0, 0, 1)
    assert node0.lost(1, "gone")
    assert node0.phase == "settling"


def test_a_node_that_is_stopped_leaves_alone(node0: Coordinator) -> None:
    gathered(node0, 0, 1)
    [(to, verdict)] = node0.receive(1, StopAsked(1, "terminated"))
    assert to == 1
    assert isinstance(verdict, Verdict)
    assert (verdict.action, verdict.exit_code) == ("exit", 75)
    assert node0.receive(1, Bye(1)) == []
    assert node0.lost(1, "its connection closed") == []
    [start] = gathered(node0, 2, 1)
    assert isinstance(start, Start)


def test_one_that_is_stopped_before_it_joins_is_not_counted(node0: Coordinator) -> None:
    node0.receive(1, StopAsked(1, "terminated"))
    [(to, verdict)] = node0.receive(1, join(1))
    assert (to, type(verdict)) == (1, Verdict)
    assert gathered(node0, 0, 2) == []


def test_the_replacement_gets_the_verdict_like_all(node0: Coordinator) -> None:
    gathered(node0, 0, 1)
    node0.receive(1, StopAsked(1, "terminated"))
    node0.receive(1, Bye(1))
    node0.lost(1, "its connection closed")
    gathered(node0, 1, 2)
    node0.receive(0, StopAsked(0, "terminated"))
    assert node0.phase == "running"
    node0.fault("the disk is full", 74)  # type: ignore[arg-type]
    for node in (0, 2):
        node0.receive(node, Bye(node))
    assert not node0.finished, "the new node 1 has not read the verdict"
    node0.receive(1, Bye(1))
    assert node0.finished


@pytest.mark.parametrize("reason", ["terminated", CANCEL])
def test_node_0s_own_stop_ends_the_gathering(node0: Coordinator, reason: str) -> None:
    gathered(node0, 0, 1)
    sends = node0.receive(0, StopAsked(0, reason))
    assert {to for to, _ in sends} >= {0, 1}
    assert node0.phase == "over"


def test_between_two_attempts_a_lost_node_is_waited_for_too(
    node0: Coordinator, recorder: MemoryRecorder
) -> None:
    gathered(node0, 0, 1, 2)
    killed = Failure(source="rank", cls="signal", rank=1, node_rank=1, exit_code=137, signal=9)
    node0.receive(1, NodeFailed(1, [killed.to_record()], 0))
    for node in range(3):
        node0.receive(node, NodeStopped(node, [], 0))
    assert node0.phase == "joining"
    gathered(node0, 0, 1)
    assert node0.lost(2, "gone") == []
    assert isinstance(gathered(node0, 2)[0], Start)
    assert recorder.attempts == 2


def test_in_a_running_attempt_a_lost_node_ends_it(node0: Coordinator) -> None:
    gathered(node0, 0, 1, 2)
    assert node0.lost(1, "gone")
    assert node0.phase == "settling"
