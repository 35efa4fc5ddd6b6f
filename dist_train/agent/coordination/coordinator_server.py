"""Node 0's server: accept the nodes' connections and pass their messages to the coordinator.

Each node keeps one connection open for the whole job. The kernel closes it when an agent dies, so
a dead agent is known in milliseconds; heartbeats are only for a dead host or a cut cable.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from dist_train.agent import timeouts
from dist_train.agent.coordination.coordinator import Coordinator, Send
from dist_train.agent.coordination.handshake import Identity, LineReader, answer_handshake
from dist_train.agent.coordination.messages import Heartbeat, Message, decode, encode
from dist_train.errors import ExitCode
from dist_train.rundir.lost_node import LostNode

logger = logging.getLogger(__name__)
_TICK_S = 0.05


class CoordinatorServer:
    """Runs a Coordinator in threads, one per connection; calls it under one lock.

    Args:
        on_fault: called with what the coordinator raised; returns what to send to the nodes.
    """

    def __init__(
        self,
        listener: socket.socket,
        identity: Identity,
        coordinator: Coordinator,
        on_fault: Callable[[BaseException], list[Send]],
    ) -> None:
        self._listener = listener
        self._identity = identity
        self._coordinator = coordinator
        self._on_fault = on_fault
        self._connections: dict[int, socket.socket] = {}
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._accept, name="agent-accept", daemon=True),
            threading.Thread(target=self._tick, name="agent-tick", daemon=True),
        ]

    def start(self) -> None:
        """Begin to accept connections."""
        for thread in self._threads:
            thread.start()

    def wait_until_over(self, timeout_s: float) -> bool:
        """Wait until every node has read the verdict, bounded; return whether that came true."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self._lock:
                if self._coordinator.finished:
                    return True
            time.sleep(_TICK_S)
        return False

    def end(self, why: str, code: ExitCode) -> None:
        """End the run on all nodes, without writing records."""
        self._do(lambda: self._coordinator.fault(why, code))

    def agent_ended(self, lost: LostNode) -> None:
        """Pass on what the launcher saw of a node's agent."""
        self._do(lambda: self._coordinator.agent_ended(lost))

    def close(self) -> None:
        """Stop listening and close the connections."""
        self._closed.set()
        self._listener.close()
        with self._lock:
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, address = self._listener.accept()
            except OSError:
                return
            serve = threading.Thread(
                target=self._serve, args=(connection,), name=f"agent-peer-{address}", daemon=True
            )
            serve.start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(timeouts.CONNECT_S)
        reader = LineReader(connection)
        try:
            with self._lock:
                taken = set(self._connections)
            node = answer_handshake(connection, reader, self._identity, self._coordinator.nodes, taken)
        except OSError:
            node = None
        if node is None:
            connection.close()
            return
        connection.settimeout(timeouts.HEARTBEAT_LOST_S)
        with self._lock:
            self._connections[node] = connection
        self._read(node, connection, reader)

    def _read(self, node: int, connection: socket.socket, reader: LineReader) -> None:
        why = "its agent's connection closed (the agent died or was killed)"
        try:
            while (line := reader.line()) is not None:
                message = decode(line)
                if not isinstance(message, Heartbeat):
                    self._do(lambda message=message: self._coordinator.receive(node, message))  # type: ignore[misc]
        except TimeoutError:
            limit = f"{timeouts.HEARTBEAT_LOST_S:g} s"
            why = f"no heartbeat for {limit} (the host is dead or cut off, or its agent was stopped)"
        except (OSError, ValueError) as error:
            logger.info("connection of node %d: %s", node, error)
        with self._lock:
            if self._connections.get(node) is connection:
                del self._connections[node]
        connection.close()
        if not self._closed.is_set():
            self._do(lambda: self._coordinator.lost(node, why))

    def _tick(self) -> None:
        heartbeat_at = 0.0
        while not self._closed.wait(_TICK_S):
            self._do(self._coordinator.tick)
            if time.monotonic() >= heartbeat_at:
                heartbeat_at = time.monotonic() + timeouts.HEARTBEAT_S
                with self._lock:
                    self._send([(node, Heartbeat()) for node in self._connections])

    def _do(self, call: Callable[[], list[Send]]) -> None:
        with self._lock:
            try:
                sends = call()
            except Exception as error:
                logger.exception("node 0 could not go on")
                sends = self._on_fault(error)
            self._send(sends)

    def _send(self, sends: list[Send]) -> None:
        for node, message in sends:
            connection = self._connections.get(node)
            if connection is not None:
                self._send_one(node, connection, message)

    def _send_one(self, node: int, connection: socket.socket, message: Message) -> None:
        try:
            connection.sendall(encode(message))
        except OSError as error:
            logger.info("node %d cannot be sent %s: %s", node, type(message).__name__, error)
