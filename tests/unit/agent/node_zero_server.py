"""A CoordinatorServer on a real socket whose coordinator only keeps what it gets; connections to it."""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from dist_train.agent.coordination.coordinator import Coordinator, Send
from dist_train.agent.coordination.coordinator_server import CoordinatorServer
from dist_train.agent.coordination.endpoint import Endpoint, connect
from dist_train.agent.coordination.handshake import Identity
from dist_train.agent.coordination.messages import Message

KEY = Identity("run-1", b"key")
WITHIN_S = 20.0


class Kept:
    """Stands for the coordinator behind a real server.

    Args:
        answer: what to send for each message.
    """

    def __init__(self, nodes: int, answer: Callable[[int, Message], list[Send]] = lambda node, message: []):
        self.nodes = nodes
        self.received: queue.Queue[tuple[int, Message]] = queue.Queue()
        self.losses: queue.Queue[tuple[int, str]] = queue.Queue()
        self._answer = answer

    def receive(self, node: int, message: Message) -> list[Send]:
        self.received.put((node, message))
        return self._answer(node, message)

    def lost(self, node: int, why: str) -> list[Send]:
        self.losses.put((node, why))
        return []

    def tick(self) -> list[Send]:
        return []


@contextmanager
def serving(coordinator: Kept) -> Iterator[Endpoint]:
    """Serve on a port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
    server = CoordinatorServer(listener, KEY, cast(Coordinator, coordinator), lambda error: [])
    server.start()
    try:
        yield endpoint
    finally:
        server.close()


def join(endpoint: Endpoint, node: int = 1, within_s: float = WITHIN_S) -> Any:
    """Connect as this node's agent."""
    return connect(endpoint, KEY, node, time.monotonic() + within_s, lambda text: None, lambda: False)


def stranger(endpoint: Endpoint) -> socket.socket:
    """Connect, and read node 0's greeting."""
    connection = socket.create_connection((endpoint.host, endpoint.port), timeout=WITHIN_S)
    assert connection.recv(4096).startswith(b"dist-train ")
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether node 0 closes the connection, after whatever it sends before that."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
