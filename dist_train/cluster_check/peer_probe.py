"""Connect to another node: round trip, its clock, and what is seen here of files that it writes."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dist_train.cluster_check.node_listener import shared_file
from dist_train.doctor.facts import NodeFacts, PeerFacts, SharedFileFacts

_CONNECT_S = 10.0
_ROUNDS = 9
_POLL_S = 0.002
SEEN_S = 60.0  # NFS may keep what it has cached of a folder for so long (acdirmax)


class Peer:
    """A connection to a node's listener."""

    def __init__(self, address: str, port: int, secret: str) -> None:
        self._secret = secret
        self._socket = socket.create_connection((address, port), timeout=_CONNECT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rwb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._socket.close()

    def ask(self, **more: Any) -> float:
        """Send a request; return the peer's clock when it answered."""
        self._stream.write(json.dumps({"secret": self._secret, **more}).encode() + b"\n")
        self._stream.flush()
        line = self._stream.readline()
        if not line:
            raise ConnectionError("it closed the connection")
        return float(json.loads(line)["time"])


def probe(node: int, peer: NodeFacts, secret: str) -> PeerFacts:
    """The shortest of several round trips, and the peer's clock by it."""
    address = peer.network.address
    where = f"{address or 'no address'} port {peer.port}"
    try:
        with Peer(address or peer.host, peer.port, secret) as connection:
            rounds = [_round(connection) for _ in range(_ROUNDS)]
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return PeerFacts(node=node, peer=peer.node, address=where, problem=problem)
    shortest, ahead = min(rounds)
    return PeerFacts(
        node=node, peer=peer.node, address=where, round_trip_s=shortest, clock_ahead_s=round(ahead, 6)
    )


def _round(connection: Peer) -> tuple[float, float]:
    """Seconds of a round trip, and how far the peer's clock is ahead in its middle."""
    before, began = time.time(), time.perf_counter()
    there = connection.ask()
    took = time.perf_counter() - began
    return took, there - (before + took / 2)


def look_at_shared_files(
    node: int, node_zero: NodeFacts, secret: str, folder: Path, bound_s: float = SEEN_S
) -> SharedFileFacts:
    """Let node 0 write a file and write it again, and see when each is seen here.

    Both are looked at before they are written, so that caches of this node (the absence of a name, the
    content) are filled, as they are in a run.
    """
    path = shared_file(folder, node)
    try:
        with Peer(node_zero.network.address or node_zero.host, node_zero.port, secret) as connection:
            _read(path)
            connection.ask(node=node, write="first")
            new_s, _ = _wait_for(path, "first", bound_s)
            if new_s is None:
                return SharedFileFacts(node=node)
            connection.ask(node=node, write="again")
            rewritten_s, at_once = _wait_for(path, "again", bound_s)
            return SharedFileFacts(node=node, new_s=new_s, rewritten_s=rewritten_s, stale=not at_once)
    except (OSError, ValueError) as error:
        return SharedFileFacts(node=node, problem=f"node {node}: {error}")


def _wait_for(path: Path, content: str, bound_s: float) -> tuple[float | None, bool]:
    """Seconds until a new open reads this; and whether the first one did."""
    began, looks = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < bound_s:
        looks += 1
        if _read(path) == content:
            return time.perf_counter() - began, looks == 1
        time.sleep(min(0.5, max(_POLL_S, passed / 10)))
    return None, False


def _read(path: Path) -> str | None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, 64).decode()
    finally:
        os.close(descriptor)
