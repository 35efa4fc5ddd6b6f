"""Hosts with ports as text (`[fd00::1]:29500`), and the address by which a machine reaches itself."""

from __future__ import annotations

import errno
import socket

_LOOPBACK_4, _LOOPBACK_6 = "127.0.0.1", "::1"


def host_port(host: str, port: int) -> str:
    """Join both; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(text: str) -> tuple[str, int]:
    """The inverse of `host_port`; raises ValueError without a port."""
    host, _, port = text.strip().rpartition(":")
    return without_brackets(host), int(port)


def without_brackets(host: str) -> str:
    """`[fd00::1]` as name services and sockets take it: fd00::1."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def loopback() -> str:
    """127.0.0.1; ::1 on a machine (or in a network namespace) that has no IPv4."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((_LOOPBACK_4, 0))
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return _LOOPBACK_6
        raise
    return _LOOPBACK_4


def loopback_of(listener: socket.socket) -> str:
    """The loopback address at which this listener is reached: IPv4 where it takes both."""
    if listener.family != socket.AF_INET6:
        return _LOOPBACK_4
    only_6 = listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return _LOOPBACK_6 if only_6 else loopback()


def listen_at(host: str, port: int = 0) -> socket.socket:
    """Listen at this IP address alone."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)
