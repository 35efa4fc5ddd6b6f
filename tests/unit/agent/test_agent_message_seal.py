"""Messages after the handshake: only what the other agent sends, once and in order, is accepted."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from node_zero_server import KEY, WITHIN_S, Kept, join, serving

from dist_train.agent.coordination.coordinator_client import CoordinatorClient
from dist_train.agent.coordination.endpoint import Endpoint
from dist_train.agent.coordination.handshake import Identity
from dist_train.agent.coordination.message_seal import MessageSeal, WrongMac
from dist_train.agent.coordination.messages import RankExited, StopAsked, Verdict, encode


def sealed(seal: MessageSeal, payload: bytes) -> bytes:
    return seal.mark(payload) + payload


def test_messages_are_accepted_in_their_order_and_once() -> None:
    at_node_0, at_peer = (KEY.seals(end, ("a" * 32, "b" * 32), 1) for end in (True, False))
    for number in range(3):
        payload = b'{"n": %d}' % number
        assert at_node_0.received.check(sealed(at_peer.sent, payload)) == payload
        assert at_peer.received.check(sealed(at_node_0.sent, payload)) == payload


def changed(lines: list[bytes]) -> list[bytes]:
    return [lines[0][:-1] + b" "]


@pytest.mark.parametrize(
    "attack",
    [
        changed,
        lambda lines: [lines[0], lines[0]],
        lambda lines: [lines[1]],
        lambda lines: [lines[0], lines[1], lines[0]],
        lambda lines: [b'{"type": "Heartbeat"}'],
        lambda lines: [b""],
        lambda lines: ["\u00e9".encode() * 40 + b" {}"],
    ],
    ids=["changed", "repeated", "before its turn", "an old one", "without a MAC", "empty", "not ASCII"],
)
def test_any_other_message_is_refused(attack: Callable[[list[bytes]], list[bytes]]) -> None:
    sender, receiver = MessageSeal(b"key"), MessageSeal(b"key")
    lines = attack([sealed(sender, b'{"n": %d}' % number) for number in range(3)])
    *before, last = lines
    for line in before:
        assert receiver.check(line)
    with pytest.raises(WrongMac):
        receiver.check(last)


def test_each_connection_and_direction_has_a_key_of_its_own() -> None:
    keys = {
        sealed(seal, b"x")
        for identity in (KEY, Identity("run-2", b"key"), Identity("run-1", b"other"))
        for challenges in (("a", "b"), ("a", "c"), ("b", "a"), ("ab", ""))
        for node in (1, 2)
        for seal in (
            identity.seals(True, challenges, node).sent,
            identity.seals(True, challenges, node).received,
        )
    }
    assert len(keys) == 3 * 4 * 2 * 2


def test_no_proof_of_the_handshake_is_also_a_key() -> None:
    """A false node 0 chooses the challenge that an agent answers with a MAC in the clear."""
    wanted = KEY.mac("from node 0", "a" * 32, "b" * 32, 1)
    for challenge in ('from node 0", "run-1", "' + "a" * 32, "from node 0|" + "a" * 32, "a" * 32):
        assert KEY.mac("node", challenge, 1) != wanted
        assert KEY.mac("node", challenge, "b" * 32, 1) != wanted


class Relay:
    """Between an agent and node 0, as whoever has the cable: passes all on, and can add its own."""

    def __init__(self, to: Endpoint) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = Endpoint("127.0.0.1", self._listener.getsockname()[1])
        self.agent, self.node_0 = socket.socket(), socket.socket()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.agent, _ = self._listener.accept()
        self.node_0 = socket.create_connection((self._to.host, self._to.port))
        for source, target in ((self.agent, self.node_0), (self.node_0, self.agent)):
            threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(65536):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        for end in (self._listener, self.agent, self.node_0):
            end.close()


@contextmanager
def relayed(to: Endpoint) -> Iterator[Relay]:
    relay = Relay(to)
    try:
        yield relay
    finally:
        relay.close()


@pytest.mark.proves("Who sits between two agents can add no message: the connection ends, the log says why")
def test_an_added_message_ends_the_connection_at_node_0(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Kept(2)
    with (
        caplog.at_level(logging.WARNING),
        serving(coordinator) as endpoint,
        relayed(endpoint) as relay,
    ):
        connection = join(relay.endpoint)
        connection.send(RankExited(1, 1, 0, 0))
        assert coordinator.received.get(timeout=WITHIN_S) == (1, RankExited(1, 1, 0, 0))
        relay.node_0.sendall(encode(StopAsked(1, "cancel")) + b"\n")
        node, why = coordinator.losses.get(timeout=WITHIN_S)
        assert (node, "wrong MAC" in why) == (1, True)
        assert coordinator.received.empty()
        connection.close()
    assert "wrong MAC" in caplog.text


def test_an_added_message_ends_the_connection_at_the_agent(caplog: pytest.LogCaptureFixture) -> None:
    stops: list[str] = []
    with (
        caplog.at_level(logging.WARNING),
        serving(Kept(2)) as endpoint,
        relayed(endpoint) as relay,
    ):
        client = CoordinatorClient(join(relay.endpoint), stops.append, lambda waiting: None)
        relay.agent.sendall(encode(Verdict("exit", 0, "done")) + b"\n")
        assert not client.wait(lambda: client.verdict is not None, WITHIN_S)
        assert client.lost is not None
        assert "wrong MAC" in client.lost
        client.close()
    assert stops == []
    assert "wrong MAC" in caplog.text
