"""Node 0's server: the nodes' connections, in one loop, and the coordinator, in a thread of its own.

Each node keeps one connection open for the whole job. The kernel closes it when an agent dies, so
a dead agent is known in milliseconds; heartbeats are for a dead host, a cut cable or a stopped agent. The
loop calls nothing that can wait: neither a slow peer nor a slow disk under the records delays a heartbeat.
"""

from __future__ import annotations

import errno
import logging
import queue
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from dist_train.agent import timeouts
from dist_train.agent.coordination.coordinator import Coordinator, Send
from dist_train.agent.coordination.handshake import HandshakeAnswer, Identity
from dist_train.agent.coordination.message_seal import WrongMac
from dist_train.agent.coordination.messages import Heartbeat, Message, encode
from dist_train.agent.coordination.peer_connection import UNSENT_LIMIT, PeerConnection
from dist_train.agent.coordination.unauthenticated_peers import UnauthenticatedPeers
from dist_train.errors import ExitCode
from dist_train.rundir.lost_node import LostNode

logger = logging.getLogger(__name__)
_TICK_S = 0.05
_SWEEP_S = 0.1  # between looks at what has been silent for too long
_ACCEPTED_AT_ONCE = 64
_FULL_S = 0.2  # before the next try, when this process has no descriptor left
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CLOSED = "its agent's connection closed (the agent died or was killed)"


class CoordinatorServer:
    """Runs a Coordinator: one thread has all connections, another calls it, under one lock.

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
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._calls: queue.SimpleQueue[Callable[[], list[Send]]] = queue.SimpleQueue()
        self._outbox: deque[list[Send]] = deque()
        # Only the loop's thread uses what follows.
        self._connections: dict[int, PeerConnection] = {}
        # Strangers may take a quarter of the descriptors: the records and the ranks need theirs.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._strangers = UnauthenticatedPeers(min(4096, max(16, descriptors // 4)), timeouts.CONNECT_S)
        self._selector = selectors.DefaultSelector()
        self._accept_at: float | None = None  # while the listener waits for free descriptors
        self._wake_up, self._woken = socket.socketpair()
        self._threads = [
            threading.Thread(target=self._loop, name="agent-server", daemon=True),
            threading.Thread(target=self._coordinate, name="agent-coordinator", daemon=True),
        ]

    def start(self) -> None:
        """Begin to accept connections."""
        for waited_for in (self._listener, self._woken, self._wake_up):
            waited_for.setblocking(False)
        for readable in (self._listener, self._woken):
            self._selector.register(readable, selectors.EVENT_READ)
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

    def send_to_all(self, message: Message) -> None:
        """Send a message that changes nothing in the coordinator's state."""
        self._do(lambda: [(node, message) for node in range(self._coordinator.nodes)])

    def agent_ended(self, lost: LostNode) -> None:
        """Pass on what the launcher saw of a node's agent."""
        self._do(lambda: self._coordinator.agent_ended(lost))

    def close(self) -> None:
        """Send what was decided, stop listening, close the connections."""
        self._closed.set()
        self._wake()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=2.0)

    # The coordinator's thread.

    def _coordinate(self) -> None:
        tick_at = 0.0
        while not self._closed.is_set():
            try:
                self._do(self._calls.get(timeout=_TICK_S))
            except queue.Empty:
                pass
            if time.monotonic() >= tick_at:
                self._do(self._coordinator.tick)
                tick_at = time.monotonic() + _TICK_S

    def _do(self, call: Callable[[], list[Send]]) -> None:
        with self._lock:
            try:
                sends = call()
            except Exception as error:
                logger.exception("node 0 could not go on")
                sends = self._on_fault(error)
            if sends:
                self._outbox.append(sends)
                self._wake()

    def _wake(self) -> None:
        try:
            self._wake_up.send(b"!")
        except OSError:
            pass  # it is awake already, or has ended

    # The loop's thread.

    def _loop(self) -> None:
        heartbeat_at = sweep_at = 0.0
        passed_at = time.monotonic()
        try:
            while not self._closed.is_set():
                ready = self._selector.select(_SWEEP_S)
                now = time.monotonic()
                if now - passed_at > timeouts.HEARTBEAT_S:
                    self._forgive_silence(now)
                passed_at = now
                for key, events in ready:
                    self._handle(key, events, now)
                self._send_outbox()
                if now >= heartbeat_at:
                    heartbeat_at = now + timeouts.HEARTBEAT_S
                    self._send_heartbeats()
                if now >= sweep_at:
                    sweep_at = now + _SWEEP_S
                    self._sweep(now)
        except Exception:
            logger.exception("node 0's server has ended")
            raise
        finally:
            self._send_outbox()
            for peer in [key.data for key in self._selector.get_map().values() if key.data is not None]:
                peer.socket.close()
            for owned in (self._listener, self._wake_up, self._woken):
                owned.close()
            self._selector.close()

    def _forgive_silence(self, now: float) -> None:
        """This process was held itself (stopped, or without its interpreter): it heard nobody meanwhile."""
        logger.warning("node 0's agent was held for a while; silence during that time does not count")
        for key in self._selector.get_map().values():
            if key.data is not None:
                key.data.heard_at = now

    def _handle(self, key: selectors.SelectorKey, events: int, now: float) -> None:
        if key.fileobj is self._listener:
            self._accept(now)
        elif key.fileobj is self._woken:
            self._woken.recv(4096)
        elif key.data.socket.fileno() >= 0:  # not closed by an event before it
            if events & selectors.EVENT_WRITE:
                self._flush(key.data)
            if events & selectors.EVENT_READ:
                self._read(key.data, now)

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _FULL:
                    self._wait_for_descriptors(error, now)
                    return
                logger.info("a connection was gone before it was accepted: %s", error)
                continue
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = HandshakeAnswer(self._identity, self._coordinator.nodes)
            peer = PeerConnection(connection, str(address[0]), handshake, now)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            if (too_many := self._strangers.add(peer)) is not None:
                self._drop(too_many)
            self._flush(peer)

    def _wait_for_descriptors(self, error: OSError, now: float) -> None:
        """Close the oldest stranger; accept again a little later: what waits is kept by the kernel."""
        if self._accept_at is None:
            logger.warning("no connection can be accepted for now: %s", error.strerror)
        if (oldest := self._strangers.oldest()) is not None:
            self._drop(oldest)
        self._selector.unregister(self._listener)
        self._accept_at = now + _FULL_S

    def _read(self, peer: PeerConnection, now: float) -> None:
        why = _CLOSED
        try:
            goes_on = peer.receive(now)
            if peer.node is None:
                goes_on = self._greet(peer) and goes_on
            if peer.node is not None:
                for message in peer.messages():
                    self._pass_on(peer.node, message)
        except WrongMac as error:
            goes_on, why = False, "its messages are not those of its agent (a wrong MAC)"
            logger.warning("connection of node %s from %s: %s", peer.node, peer.address, error)
        except (OSError, ValueError) as error:
            goes_on = False
            if peer.node is not None:
                logger.info("connection of node %d: %s", peer.node, error)
        if not goes_on:
            self._drop(peer, why)

    def _greet(self, peer: PeerConnection) -> bool:
        goes_on = peer.greet(self._connections)
        if peer.node is not None:
            self._strangers.discard(peer)
            self._connections[peer.node] = peer
        self._flush(peer)
        return goes_on

    def _pass_on(self, node: int, message: Message) -> None:
        if not isinstance(message, Heartbeat):
            self._calls.put(lambda: self._coordinator.receive(node, message))

    def _drop(self, peer: PeerConnection, why: str = _CLOSED) -> None:
        """Close a connection; tell the coordinator if it was a node's."""
        if peer.socket.fileno() < 0:
            return
        self._selector.unregister(peer.socket)
        peer.socket.close()
        self._strangers.discard(peer)
        node = peer.node
        if node is not None and self._connections.get(node) is peer:
            del self._connections[node]
            self._calls.put(lambda: self._coordinator.lost(node, why))

    def _sweep(self, now: float) -> None:
        """Close what has been silent for too long; accept again when that was put off."""
        for stranger in self._strangers.expired(now):
            self._drop(stranger)
        limit = timeouts.HEARTBEAT_LOST_S
        why = f"no heartbeat for {limit:g} s (the host is dead or cut off, or its agent was stopped)"
        for peer in [peer for peer in self._connections.values() if now - peer.heard_at > limit]:
            self._drop(peer, why)
        if self._accept_at is not None and now >= self._accept_at:
            self._accept_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _send_heartbeats(self) -> None:
        payload = encode(Heartbeat())
        for peer in list(self._connections.values()):
            if not peer.unsent_bytes:
                peer.send(payload)
                self._flush(peer)

    def _send_outbox(self) -> None:
        while self._outbox:
            encoded: dict[int, bytes] = {}
            for node, message in self._outbox.popleft():
                payload = encoded.get(id(message)) or encode(message)
                encoded[id(message)] = payload
                if (peer := self._connections.get(node)) is not None:
                    peer.send(payload)
                    self._flush(peer)

    def _flush(self, peer: PeerConnection) -> None:
        """Send what the kernel takes now, the rest when it takes more; a peer that reads nothing is lost."""
        try:
            peer.flush()
        except OSError as error:
            # Its own end, or what it sent before it, is still to be read.
            logger.info("node %s cannot be sent to: %s", peer.node, error)
            return
        if peer.socket.fileno() < 0:
            return
        if peer.unsent_bytes > UNSENT_LIMIT:
            self._drop(peer, f"its agent does not read: {peer.unsent_bytes} bytes wait for it")
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent_bytes else 0)
        if self._selector.get_key(peer.socket).events != wanted:
            self._selector.modify(peer.socket, wanted, peer)
