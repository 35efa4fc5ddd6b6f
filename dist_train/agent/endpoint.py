"""Where node 0 listens: an address, a socket handed over, or a file that node 0 publishes.

tcp://host:port            listen there on node 0, connect there from the others
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

from dist_train.agent import bounds
from dist_train.agent.hello import Identity, LineReader, Refused, Silent, introduce
from dist_train.errors import ConfigError, RendezvousError
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
        """Raises ConfigError for anything but the three forms."""
        if text.startswith("file:///"):
            return cls(file=Path(text.removeprefix("file://")))  # a path as it is, `#` and `%` included
        url = urlsplit(text)
        try:
            if url.scheme == "tcp" and url.hostname and url.port is not None:
                handed = parse_qs(url.query).get("fd")
                return cls(url.hostname, url.port, int(handed[0]) if handed else None)
        except ValueError:
            pass
        raise ConfigError(f"DIST_TRAIN_RDZV={text!r} is neither tcp://host:port nor file:///path")

    def listen(self, advertised_host: str) -> socket.socket:
        """Node 0: the listening socket, published where the others look for it."""
        if self.descriptor is not None:
            return socket.socket(fileno=self.descriptor)
        try:
            listener = socket.create_server(("", self.port), family=socket.AF_INET, backlog=1024)
        except OSError as error:
            raise RendezvousError(
                f"port {self.port} on this node cannot be listened on: {os.strerror(error.errno or 0)}",
                cause=f"it is held by {holder_of(self.port)}",
                mend="end that process, or give the run another port",
            ) from error
        if self.file is not None:
            write_bytes_atomic(self.file, f"{advertised_host}:{listener.getsockname()[1]}\n".encode())
        return listener

    def locate(self) -> tuple[str, int] | None:
        """A peer: where node 0 is, or None while that is not published."""
        if self.file is None:
            return self.host, self.port
        try:
            os.listdir(self.file.parent)  # NFS caches that a file was absent; listing asks anew
            host, _, port = self.file.read_text().strip().rpartition(":")
            return host, int(port)
        except (OSError, ValueError):
            return None


def holder_of(port: int) -> str:
    """The process that listens on a TCP port, as far as this user may see."""
    import psutil

    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return "a process that this user may not see"


def connect(
    endpoint: Endpoint,
    me: Identity,
    node: int,
    deadline: float,
    say: Callable[[str], None],
    give_up: Callable[[], bool],
    patience_s: float = 0.0,
    retry_s: float = RETRY_S,
) -> tuple[socket.socket, LineReader]:
    """Reach node 0 and be accepted: bounded tries, each reason said when it changes.

    The name is resolved anew at each try.

    Args:
        deadline: `time.monotonic()` at which to give up.
        say: called with what is waited for, at once and then every 15 s.
        give_up: asked between tries; true when a stop was asked for.
        patience_s: how long the address may still be that of a stranger, of another run, or of a node 0
            that has not yet missed this node's last agent.
    """
    said, say_again_at = "", 0.0
    patient_until = time.monotonic() + patience_s
    while True:
        try:
            return _try_once(endpoint, me, node)
        except (OSError, Silent) as error:
            reason = _reason(endpoint, error)
        except (RendezvousError, ConfigError) as error:
            if isinstance(error, Refused) or time.monotonic() >= patient_until or give_up():
                raise
            reason = error.what
        now = time.monotonic()
        if now >= deadline or give_up():
            raise RendezvousError(
                f"node {node} could not reach node 0: {reason}",
                mend="see that node 0's agent runs and that its port is open between the nodes",
            )
        if reason != said or now >= say_again_at:
            say(f"node {node} waits for node 0: {reason}")
            said, say_again_at = reason, now + bounds.ROLL_CALL_S
        time.sleep(retry_s)


def _try_once(endpoint: Endpoint, me: Identity, node: int) -> tuple[socket.socket, LineReader]:
    located = endpoint.locate()
    if located is None:
        raise FileNotFoundError(f"{endpoint.file} is not there yet")
    host, port = located
    socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # an unknown name is said as such, at once
    connection = socket.create_connection((host, port), timeout=bounds.CONNECT_S)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = LineReader(connection)
        introduce(connection, reader, me, node, f"{host}:{port}")
    except BaseException:
        connection.close()
        raise
    return connection, reader


def _reason(endpoint: Endpoint, error: Exception) -> str:
    where = f"{endpoint.host}:{endpoint.port}" if endpoint.file is None else str(endpoint.file)
    return f"{where}: {error.strerror if isinstance(error, OSError) and error.strerror else error}"
