"""A second loss, and what comes late: node 0's answers, and those of the other nodes' agents to node 0's."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from simulated_run import SimulatedRun, rank_failure

from dist_train.agent.coordination.agent_connection import AgentConnection
from dist_train.agent.coordination.coordinator import CANCEL
from dist_train.agent.coordination.coordinator_client import CoordinatorClient
from dist_train.agent.coordination.handshake import LONGEST_LINE, Identity
from dist_train.agent.coordination.line_buffer import LineReader
from dist_train.agent.coordination.messages import (
    Join,
    Message,
    NodeDone,
    NodeFailed,
    Start,
    StopAsked,
    StopWorkers,
    Verdict,
)
from dist_train.agent.coordination.rendezvous import AttemptOver, NodeRendezvous
from dist_train.agent.node import Node
from dist_train.errors import ExitCode
from dist_train.rundir.lost_node import LostNode

RESTART, END = Verdict("restart", 137, "restart 1 of 3"), Verdict("exit", 79, "a node was lost")
START = Start(1, "127.0.0.1", 29500)


def rejoining(nodes: int = 2, replaces_nodes: bool = False) -> SimulatedRun:
    """A rank was killed; the nodes have been told to start again, and only node 0 has rejoined."""
    run = SimulatedRun(nodes, replaces_nodes)
    for agent in run.agents:
        agent.join()
    run.pass_time(1.0)
    run.agents[0].fail(rank_failure(0, "signal"))
    run.until(lambda: run.agents[0].state == "ending", 5.0)
    run.agents[0].join()
    assert run.coordinator.phase == "joining"
    return run


def test_an_agent_that_is_lost_before_it_has_rejoined_ends_the_attempt() -> None:
    run = rejoining()
    lost_at = run.now
    run.agents[1].alive = False
    run.disconnect(run.agents[1], "its connection closed")
    assert run.until(lambda: run.coordinator.phase == "over", 15.0), "it was ignored for 900 s"
    assert run.now - lost_at < 3.0
    assert run.coordinator.verdict is not None
    assert run.coordinator.verdict.exit_code == ExitCode.ATTEMPT_LOST


def test_a_restart_is_not_ordered_where_a_node_was_lost_too() -> None:
    """The survivors' own error comes first: it would be restarted, without the node that it is due to."""
    run = SimulatedRun(2)
    for agent in run.agents:
        agent.join()
    run.pass_time(1.0)
    run.agents[0].fail(rank_failure(0, "victim"))
    run.agents[1].alive = False
    run.disconnect(run.agents[1], "its connection closed")
    assert run.until(lambda: run.coordinator.phase == "over", 15.0)
    verdict = run.coordinator.verdict
    assert verdict is not None
    assert verdict.exit_code == ExitCode.ATTEMPT_LOST
    assert verdict.failure is not None
    assert verdict.failure["message"].startswith("node 1 (host1) is gone: its connection closed")


def test_the_failure_that_came_with_a_loss_is_named() -> None:
    run = SimulatedRun(2)
    for agent in run.agents:
        agent.join()
    run.pass_time(1.0)
    run.agents[0].fail(rank_failure(0, "signal"))
    run.agents[1].alive = False
    run.disconnect(run.agents[1], "its connection closed")
    run.until(lambda: run.coordinator.phase == "over", 15.0)
    assert run.coordinator.verdict is not None
    assert (run.coordinator.verdict.failure or {})["message"].endswith("in the same attempt rank 0: signal")


@pytest.mark.parametrize(("begun", "code"), [(False, ExitCode.UNAVAILABLE), (True, ExitCode.ATTEMPT_LOST)])
def test_a_node_that_never_came_is_69_and_one_that_does_not_come_back_79(begun: bool, code: ExitCode) -> None:
    run = rejoining(replaces_nodes=True) if begun else SimulatedRun(2, replaces_nodes=True)
    run.agents[0].join()
    run.agents[1].alive = run.agents[1].connected = False
    run.deliver(run.coordinator.lost(1, "its connection closed"))
    assert run.until(lambda: run.coordinator.phase == "over", 930.0)
    assert run.coordinator.verdict is not None
    assert run.coordinator.verdict.exit_code == code


def test_a_report_of_a_former_attempt_changes_nothing() -> None:
    run = rejoining()
    run.until(lambda: run.agents[1].state == "ending", 1.0)
    run.agents[1].join()
    assert run.coordinator.phase == "running"
    record = rank_failure(1, "exception").to_record()
    for late in (NodeFailed(1, [record], 0), NodeDone(0, {"0": 0}, 0), NodeDone(1, {"1": 0}, 0)):
        assert run.coordinator.receive(late.node, late) == []
    assert run.coordinator.phase == "running"


def test_the_place_of_a_lost_node_may_be_taken_before_the_verdict() -> None:
    """A pod that comes in the place of another joins while node 0 still gathers the failure's reports."""
    run = SimulatedRun(2, replaces_nodes=True)
    for agent in run.agents:
        agent.join()
    run.pass_time(1.0)
    run.agents[0].fail(rank_failure(0, "signal"))
    run.coordinator.lost(1, "its connection closed")
    run.coordinator.receive(1, Join(1, "host1", 999, 1, "nonce", {}))
    run.deliver(run.coordinator.tick())
    run.until(lambda: run.coordinator.phase == "joining", 5.0)
    sends = run.coordinator.receive(0, Join(0, "host0", 100, 1, "nonce", {}))
    assert [(node, type(message)) for node, message in sends] == [(0, Start), (1, Start)]


def test_a_cancel_after_another_stop_is_a_cancel() -> None:
    run = SimulatedRun(1)
    run.agents[0].join()
    run.pass_time(1.0)
    run.agents[0].send(StopAsked(0, "terminated"))
    run.agents[0].send(StopAsked(0, CANCEL))
    run.until(lambda: run.coordinator.phase == "over", 15.0)
    assert run.coordinator.verdict is not None
    assert run.coordinator.verdict.exit_code == ExitCode.CANCELLED


def test_an_agents_own_code_counts_though_its_connection_closed_first() -> None:
    run = SimulatedRun(2)
    run.agents[0].join()
    run.coordinator.lost(1, "its connection closed")
    run.coordinator.agent_ended(LostNode(1, 78))
    assert run.coordinator.verdict is not None
    assert run.coordinator.verdict.exit_code == 78


def test_the_verdict_stands() -> None:
    run = SimulatedRun(1)
    run.agents[0].join()
    run.until(lambda: run.coordinator.phase == "over", 30.0)
    assert run.coordinator.fault("the disk is full", ExitCode.CHECKPOINT_WRITE) == []
    assert run.coordinator.verdict is not None
    assert run.coordinator.verdict.exit_code == 0


# The other side: what an agent does with messages that cross its own.


class Peer:
    """A client, and node 0's end of its connection."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        run, challenges = Identity("run", b"key"), ("a", "b")
        self.node_zero = AgentConnection(
            there, LineReader(there, LONGEST_LINE), run.seals(True, challenges, 1)
        )
        connection = AgentConnection(here, LineReader(here, LONGEST_LINE), run.seals(False, challenges, 1))
        self.client = CoordinatorClient(connection, lambda reason: None, lambda waiting: None)

    def sends(self, *messages: Message) -> None:
        for message in messages:
            self.node_zero.send(message)

    def rendezvous(self) -> NodeRendezvous:
        join = Join(1, "b", 2, 1, "nonce", {})
        return NodeRendezvous(self.client, "run", 1, 2, lambda: join, lambda start: None)


def until(ready: Any) -> None:
    deadline = time.monotonic() + 10.0
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert ready()


def test_an_end_that_comes_before_the_node_joins_is_not_forgotten() -> None:
    peer = Peer()
    peer.sends(END)
    until(lambda: peer.client.verdict is not None)
    with pytest.raises(AttemptOver):
        peer.rendezvous().next_rendezvous()
    assert peer.client.verdict == END


def test_a_restart_that_comes_after_the_node_has_joined_is_the_last_attempts() -> None:
    peer = Peer()
    peer.sends(StopWorkers("late"), RESTART, START)
    until(lambda: peer.client.start is not None)
    assert (peer.client.verdict, peer.client.stop_workers) == (None, None), "they would end the new attempt"


def test_a_node_0_that_goes_after_it_ordered_a_restart_is_a_loss() -> None:
    node: Any = object.__new__(Node)
    said: list[str] = []
    node._settings, node._attempt = SimpleNamespace(node=1), 0
    node._output = SimpleNamespace(note=said.append)
    client = SimpleNamespace(verdict=RESTART, is_over=False, lost="node 0's agent is gone")
    end = node._leave(cast(CoordinatorClient, client))
    assert (end.code, said) == (ExitCode.ATTEMPT_LOST, ["node 1 leaves: node 0's agent is gone"])
