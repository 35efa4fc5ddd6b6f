"""A TCP store that fails with a reason: a taken port, a wrong host name, a listener that never answers."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import threading
import time
from datetime import timedelta

from dist_train.distributed.init_method import TcpRendezvous
from dist_train.distributed.stores.torch_stores import Store, TCPStore
from dist_train.errors import RendezvousError
from dist_train.jobs.host_port import listen_at, loopback
from dist_train.jobs.port_holder import port_holder

logger = logging.getLogger(__name__)

# A live store answers its first ping in milliseconds; a busy machine gets a generous multiple.
_ANSWER_S = 30.0
_LOG_EVERY_S = 15.0


def open_store(
    rendezvous: TcpRendezvous, rank: int, world_size: int, deadline: float, timeout_s: float
) -> Store:
    """Serve the store (rank 0, unless an agent serves it) or connect to it.

    Args:
        deadline: time.monotonic() by which it must be open.
        timeout_s: time-out of every later call on the store.
    """
    if rank == 0 and not rendezvous.hosted:
        return _serve(rendezvous, world_size, timeout_s)
    _probe(rendezvous, deadline)
    return _connect(rendezvous, world_size, deadline, timeout_s)


def listen_on_loopback() -> socket.socket:
    """Listen on a free port for processes of this machine; `serve_at` then serves their store there."""
    return listen_at(loopback())


def serve_at(listener: socket.socket) -> TCPStore:
    """Serve a store to those who connect, or have connected already; takes the listener over."""
    host, port = listener.getsockname()[:2]
    return TCPStore(
        str(host),
        int(port),
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _serve(rendezvous: TcpRendezvous, world_size: int, timeout_s: float) -> Store:
    listener = _listen(rendezvous)
    bound_to = str(listener.getsockname()[0])
    own_host = loopback() if bound_to in ("::", "0.0.0.0") else bound_to
    # The bound socket itself is passed on, so that no other process can take the port in between.
    return TCPStore(
        own_host,
        rendezvous.port,
        world_size,
        True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _listen(rendezvous: TcpRendezvous) -> socket.socket:
    try:
        if _is_loopback(rendezvous.host) or _is_own_address(rendezvous.host):
            return listen_at(
                loopback() if rendezvous.host == "localhost" else rendezvous.host, rendezvous.port
            )
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", rendezvous.port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
        return socket.create_server(("", rendezvous.port), backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise taken_port(rendezvous.port) from None
        raise RendezvousError(
            f"rank 0 cannot listen on port {rendezvous.port}: {error.strerror}",
            cause="ports below 1024 are the system's" if error.errno == errno.EACCES else None,
            hint="choose another port between 1024 and 65535",
        ) from None


def taken_port(port: int) -> RendezvousError:
    """The error for a port in use, naming the process if the system shows it."""
    holder = port_holder(port)
    return RendezvousError(
        f"port {port} is taken" + (f" by {holder}" if holder else ""),
        cause="rank 0 must serve the ranks' store on it"
        + ("" if holder else "; its owner is another user's process, which the system does not name"),
        hint="choose another port" + (f", or end that process: kill {holder.pid}" if holder else ""),
    )


def _probe(rendezvous: TcpRendezvous, deadline: float) -> None:
    """Wait until something listens, by plain sockets: torch's client logs a page for each failed try."""
    next_log = time.monotonic() + _LOG_EVERY_S
    while True:
        reason = _try_connect(rendezvous)
        if reason is None:
            return
        now = time.monotonic()
        if now >= deadline:
            raise RendezvousError(
                f"rank 0's store at {rendezvous} cannot be reached: {reason}",
                hint="check that rank 0 has started and that host and port are rank 0's",
            )
        if now >= next_log:
            logger.warning("waiting for rank 0 at %s: %s", rendezvous, reason)
            next_log = now + _LOG_EVERY_S
        time.sleep(0.1)


def _try_connect(rendezvous: TcpRendezvous) -> str | None:
    try:
        socket.getaddrinfo(rendezvous.host, rendezvous.port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return f"{rendezvous.host}: {error.strerror}"
    try:
        socket.create_connection((rendezvous.host, rendezvous.port), timeout=5).close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None


def _connect(rendezvous: TcpRendezvous, world_size: int, deadline: float, timeout_s: float) -> Store:
    """Connect torch's client in a thread: it waits for ever on a listener that never answers."""
    stores: list[Store] = []
    errors: list[Exception] = []

    def attempt() -> None:
        try:
            stores.append(
                TCPStore(
                    rendezvous.host,
                    rendezvous.port,
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
        # The client looks up the name of the address before it sends anything (c10d's formatSockAddr).
        cause = (
            f"it accepted, then sent nothing for {limit:.0f} s: another service, or a stopped process; or "
            f"the name server of this machine is slow: `time getent hosts {rendezvous.host}`"
        )
    raise RendezvousError(
        f"what listens at {rendezvous} does not answer as rank 0's store",
        cause=cause,
        hint="check host and port; on that host, `ss -ltnp` names the listener",
    )


def _is_own_address(host: str) -> bool:
    """Whether it is a numeric address of this host: a name may lead other ranks to another one."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")
