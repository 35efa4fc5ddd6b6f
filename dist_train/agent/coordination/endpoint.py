"""Where node 0 listens: an address, an inherited socket, or a file that node 0 publishes.

tcp://host:port            listen there on node 0, connect there from the others; tcp://[fd00::1]:port
tcp://host:port?fd=5       node 0 inherits the listening socket (bound before anything started)
file:///run/control/rdzv-… node 0 binds a free port and publishes host:port by an atomic rename
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from dist_train.agent import timeouts
from dist_train.agent.coordination.address import family_of, is_address, may_be_reached_by_both
from dist_train.agent.coordination.agent_connection import AgentConnection
from dist_train.agent.coordination.handshake import (
    LONGEST_LINE,
    Identity,
    NoAnswer,
    NodeRefused,
    request_handshake,
)
from dist_train.agent.coordination.line_buffer import LineReader
from dist_train.errors import ConfigError, RendezvousError
from dist_train.jobs.host_port import host_port, split_host_port
from dist_train.jobs.port_holder import port_holder
from dist_train.rundir.records import write_bytes_atomic

RETRY_S = 0.1


@dataclass(frozen=True)
class Endpoint:
    """Parsed form of DIST_TRAIN_RDZV."""

    host: str = ""
    port: int = 0
    descriptor: int | None = None
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Parse DIST_TRAIN_RDZV; raises ConfigError for anything but the three forms."""
        if text.startswith("file:///"):
            return cls(file=Path(text.removeprefix("file://")))  # a path as it is, `#` and `%` included
        url = urlsplit(text)
        try:
            if url.scheme == "tcp" and url.hostname and url.port is not None:
                inherited = parse_qs(url.query).get("fd")
                return cls(url.hostname, url.port, int(inherited[0]) if inherited else None)
        except ValueError:
            pass
        raise ConfigError(f"DIST_TRAIN_RDZV={text!r} is neither tcp://host:port nor file:///path")

    def listen(self, advertised_host: str) -> socket.socket:
        """Open node 0's listening socket, and publish its address where the others look for it."""
        if self.descriptor is not None:
            return socket.socket(fileno=self.descriptor)
        family = family_of(self.host if is_address(self.host) else advertised_host)
        if may_be_reached_by_both(self.host or advertised_host):
            family = socket.AF_INET6
        # An IPv6 socket takes IPv4 too.
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        try:
            listener = socket.create_server(("", self.port), family=family, backlog=4096, dualstack_ipv6=dual)
        except OSError as error:
            raise RendezvousError(
                f"port {self.port} on this node cannot be listened on: {os.strerror(error.errno or 0)}",
                cause=f"it is held by {port_holder(self.port) or 'a process of another user'}",
                hint="end that process, or give the run another port",
            ) from error
        if self.file is not None:
            write_bytes_atomic(
                self.file, f"{host_port(advertised_host, listener.getsockname()[1])}\n".encode()
            )
        return listener

    def locate(self) -> tuple[str, int] | None:
        """Return node 0's address for a peer, or None while it is not published."""
        if self.file is None:
            return self.host, self.port
        try:
            os.listdir(self.file.parent)  # NFS caches that a file was absent; listing asks the server again
            return split_host_port(self.file.read_text())
        except (OSError, ValueError):
            return None


def connect(
    endpoint: Endpoint,
    identity: Identity,
    node: int,
    deadline: float,
    note: Callable[[str], None],
    give_up: Callable[[], bool],
    stale_address_s: float = 0.0,
    retry_s: float = RETRY_S,
) -> AgentConnection:
    """Connect to node 0 and be accepted, retrying until the deadline; the name is resolved at each try.

    Args:
        deadline: `time.monotonic()` at which to give up.
        note: called with what is waited for, when that changes and every 15 s.
        give_up: polled between tries; true when a stop was asked for.
        stale_address_s: how long the address may still be that of another program, of another run, or of a
            node 0 that has not yet noticed the loss of this node's last agent.
    """
    noted, note_again_at = "", 0.0
    stale_until = time.monotonic() + stale_address_s
    while True:
        try:
            return _try_once(endpoint, identity, node)
        except (OSError, NoAnswer) as error:
            reason = _reason(endpoint, error)
        except (RendezvousError, ConfigError) as error:
            if isinstance(error, NodeRefused) or time.monotonic() >= stale_until or give_up():
                raise
            reason = error.what
        now = time.monotonic()
        if now >= deadline or give_up():
            raise RendezvousError(
                f"node {node} could not reach node 0: {reason}",
                hint="see that node 0's agent runs and that its port is open between the nodes",
            )
        if reason != noted or now >= note_again_at:
            note(f"node {node} waits for node 0: {reason}")
            noted, note_again_at = reason, now + timeouts.MEMBERSHIP_CHECK_S
        time.sleep(retry_s)


def _try_once(endpoint: Endpoint, identity: Identity, node: int) -> AgentConnection:
    located = endpoint.locate()
    if located is None:
        raise FileNotFoundError(f"{endpoint.file} is not there yet")
    host, port = located
    socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # an unknown name fails at once, and as such
    connection = socket.create_connection((host, port), timeout=timeouts.CONNECT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = LineReader(connection, LONGEST_LINE)
        seals = request_handshake(connection, reader, identity, node, host_port(host, port))
    except BaseException:
        connection.close()
        raise
    return AgentConnection(connection, reader, seals)


def _reason(endpoint: Endpoint, error: Exception) -> str:
    where = host_port(endpoint.host, endpoint.port) if endpoint.file is None else str(endpoint.file)
    return f"{where}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
