"""Node 0's connections of agents: a slow reader delays nobody, silence while node 0 was held is no loss."""

from __future__ import annotations

import ctypes
import logging
import socket
import threading
import time
from typing import cast

import pytest
from node_zero_server import KEY, WITHIN_S, Kept, join, serving

from dist_train.agent import timeouts
from dist_train.agent.coordination import coordinator_server
from dist_train.agent.coordination.coordinator import Send
from dist_train.agent.coordination.coordinator_client import CoordinatorClient
from dist_train.agent.coordination.handshake import HandshakeAnswer
from dist_train.agent.coordination.membership_line import node_names, nodes_here
from dist_train.agent.coordination.messages import Heartbeat, Message, RankExited, StopWorkers
from dist_train.agent.coordination.peer_connection import PeerConnection
from dist_train.agent.coordination.unauthenticated_peers import UnauthenticatedPeers

LONG = StopWorkers("x" * 4_000_000)


def to_both(node: int, message: Message) -> list[Send]:
    return [(0, LONG), (1, LONG)]


def test_a_node_that_does_not_read_delays_nobody() -> None:
    coordinator = Kept(2, to_both)
    with serving(coordinator) as endpoint:
        reading, stalled = join(endpoint, 0), join(endpoint, 1)
        for _ in range(3):
            began = time.monotonic()
            reading.send(RankExited(0, 0, 0, 0))
            answer = Heartbeat()
            while isinstance(answer, Heartbeat):
                answer = reading.receive()
            assert answer == LONG
            assert time.monotonic() - began < WITHIN_S / 4
        # What waited for it is still there when it reads again.
        received = [message for message in (stalled.receive() for _ in range(3)) if message == LONG]
        assert len(received) == 3
        assert coordinator.losses.empty()
        reading.close()
        stalled.close()


def test_what_is_kept_for_a_node_that_does_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_server, "UNSENT_LIMIT", 10_000_000)
    coordinator = Kept(2, to_both)
    with serving(coordinator) as endpoint:
        reading, stalled = join(endpoint, 0), join(endpoint, 1)
        while coordinator.losses.empty():
            reading.send(RankExited(0, 0, 0, 0))
            while reading.receive() != LONG:
                pass
        node, why = coordinator.losses.get()
        assert (node, "does not read" in why) == (1, True)
        reading.close()
        stalled.close()


def test_silence_while_node_0_was_held_itself_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "HEARTBEAT_S", 0.3)
    monkeypatch.setattr(timeouts, "HEARTBEAT_LOST_S", 1.5)
    coordinator = Kept(2)
    with serving(coordinator) as endpoint:
        connection = join(endpoint)
        ctypes.PyDLL(None).sleep(2)  # keeps the interpreter's lock, that of the server's threads too
        held_until = time.monotonic()
        node, why = coordinator.losses.get(timeout=WITHIN_S)  # nothing came afterwards either
        assert time.monotonic() - held_until > 1.4
        assert (node, "no heartbeat for 1.5 s" in why) == (1, True)
        connection.close()


def test_a_connection_that_was_closed_here_ends_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    before = set(threading.enumerate())
    with caplog.at_level(logging.INFO, "dist_train"), serving(Kept(2)) as endpoint:
        client = CoordinatorClient(join(endpoint), lambda reason: None, lambda waiting: None)
        reader = next(
            thread for thread in set(threading.enumerate()) - before if thread.name == "agent-client"
        )
        assert not client.wait(lambda: False, 0.1)  # it has begun to read
        client.close()
        reader.join(WITHIN_S / 2)
        assert not reader.is_alive()
    assert "connection to node 0" not in caplog.text
    assert client.lost is None


def peers(*addresses: str) -> list[PeerConnection]:
    no_socket = cast(socket.socket, None)
    return [
        PeerConnection(no_socket, address, HandshakeAnswer(KEY, 2), float(number))
        for number, address in enumerate(addresses)
    ]


def test_the_oldest_stranger_of_an_address_goes_first() -> None:
    first, other, second, third = peers("a", "b", "a", "a")
    strangers = UnauthenticatedPeers(total=3, seconds=1.5, per_address=2)
    assert [strangers.add(peer) for peer in (first, other, second)] == [None, None, None]
    assert strangers.add(third) is first, "of its own address, whatever the total"
    strangers.discard(first)
    [fourth] = peers("c")
    assert strangers.add(fourth) is other, "the oldest of all"
    strangers.discard(other)
    strangers.discard(other)
    assert strangers.oldest() is second
    assert strangers.expired(4.0) == [second]
    assert len(strangers) == 3


@pytest.mark.parametrize(
    ("count", "named", "here"),
    [(0, "", "nobody"), (1, "n0", "n0"), (8, "n0, n1, n2, n3, n4, n5, n6, n7", None)],
)
def test_few_nodes_are_named(count: int, named: str, here: str | None) -> None:
    names = [f"n{number}" for number in range(count)]
    assert node_names(names) == named
    assert nodes_here(names) == (named if here is None else here)


def test_many_nodes_are_counted() -> None:
    names = [f"n{number}" for number in range(1000)]
    assert node_names(names) == "n0, n1, n2, n3, n4, n5, n6, n7 and 992 more"
    assert nodes_here(names) == "1000 nodes"
