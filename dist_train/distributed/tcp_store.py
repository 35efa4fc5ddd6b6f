"""A TCP store that fails with a reason: a taken port, a wrong name, a listener that never answers."""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from datetime import timedelta

import psutil

from dist_train.distributed.init_method import TcpMeeting
from dist_train.distributed.stores import Store, TCPStore
from dist_train.errors import RendezvousError

logger = logging.getLogger(__name__)

# A live store answers its first ping in milliseconds; a busy machine gets a generous multiple.
_ANSWER_S = 30.0
_SAY_EVERY_S = 15.0


def open_store(meeting: TcpMeeting, rank: int, world_size: int, deadline: float, timeout_s: float) -> Store:
    """Serve the store (rank 0, unless an agent serves it) or connect to it.

    Args:
        deadline: time.monotonic() by which it must stand.
        timeout_s: time-out of every later call on the store.
    """
    if rank == 0 and not meeting.hosted:
        return _serve(meeting, world_size, timeout_s)
    _probe(meeting, deadline)
    return _connect(meeting, world_size, deadline, timeout_s)


def _serve(meeting: TcpMeeting, world_size: int, timeout_s: float) -> Store:
    listener = _listen(meeting)
    own_host = meeting.host if _is_loopback(meeting.host) else "127.0.0.1"
    # The bound socket itself is handed over, so nobody can take the port between check and use.
    return TCPStore(
        own_host,
        meeting.port,
        world_size,
        True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _listen(meeting: TcpMeeting) -> socket.socket:
    try:
        if _is_loopback(meeting.host):
            family = socket.AF_INET6 if ":" in meeting.host else socket.AF_INET
            return socket.create_server((meeting.host, meeting.port), family=family, backlog=1024)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", meeting.port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
        return socket.create_server(("", meeting.port), backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise taken_port(meeting.port) from None
        raise RendezvousError(
            f"rank 0 cannot listen on port {meeting.port}: {error.strerror}",
            cause="ports below 1024 are the system's" if error.errno == errno.EACCES else None,
            mend="choose another port between 1024 and 65535",
        ) from None


def taken_port(port: int) -> RendezvousError:
    """The error for a port that somebody holds, naming the process where the system tells."""
    holder = _holder(port)
    return RendezvousError(
        f"port {port} is taken" + (f" by {holder[1]} (pid {holder[0]})" if holder else ""),
        cause="rank 0 must serve the ranks' store on it"
        + ("" if holder else "; its owner is another user's process, which the system does not name"),
        mend="choose another port" + (f", or end that process: kill {holder[0]}" if holder else ""),
    )


def _holder(port: int) -> tuple[int, str] | None:
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.pid and _port(connection.laddr) == port:
                return connection.pid, " ".join(psutil.Process(connection.pid).cmdline()[:3])
    except psutil.Error:
        pass
    return None


def _port(address: tuple[object, ...]) -> object:
    return address[1] if len(address) > 1 else None


def _probe(meeting: TcpMeeting, deadline: float) -> None:
    """Wait until something listens, by plain sockets: torch's client prints a page for each failed try."""
    next_word = time.monotonic() + _SAY_EVERY_S
    while True:
        reason = _try_connect(meeting)
        if reason is None:
            return
        now = time.monotonic()
        if now >= deadline:
            raise RendezvousError(
                f"rank 0's store at {meeting} cannot be reached: {reason}",
                mend="check that rank 0 has started and that host and port are rank 0's",
            )
        if now >= next_word:
            logger.warning("waiting for rank 0 at %s: %s", meeting, reason)
            next_word = now + _SAY_EVERY_S
        time.sleep(0.1)


def _try_connect(meeting: TcpMeeting) -> str | None:
    try:
        socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return f"{meeting.host}: {error.strerror}"
    try:
        socket.create_connection((meeting.host, meeting.port), timeout=5).close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _connect(meeting: TcpMeeting, world_size: int, deadline: float, timeout_s: float) -> Store:
    """Torch's client, in a thread: facing a listener that never answers it waits for ever."""
    stores: list[Store] = []
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            stores.append(
                TCPStore(
                    meeting.host,
                    meeting.port,
                    world_size,
                    False,
                    timeout=timedelta(seconds=timeout_s),
                    wait_for_workers=False,
                )
            )
        except Exception as error:  # carried to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=attempt, name="dist-train-store", daemon=True)
    thread.start()
    limit = min(_ANSWER_S, max(1.0, deadline - time.monotonic()))
    thread.join(limit)
    if stores:
        return stores[0]
    if errors:
        first_line = str(errors[0]).partition("\n")[0]
        cause = f"{type(errors[0]).__name__}: {first_line}"
    else:
        cause = (
            f"it took the connection and said nothing for {limit:.0f} s: another service or a stopped process"
        )
    raise RendezvousError(
        f"what listens at {meeting} does not answer as rank 0's store",
        cause=cause,
        mend="check host and port; on that host, `ss -ltnp` names the listener",
    )


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
