"""Where a rank 0 that serves the store itself listens: on its own address, where one was given."""

from __future__ import annotations

import socket

import psutil
import pytest
from rendezvous_port import free_port

from dist_train.distributed.init_method import TcpRendezvous
from dist_train.distributed.stores import tcp_store


def own_address() -> str:
    """An IPv4 address of this machine, loopback where it has no other."""
    found = [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not entry.address.startswith("127.")
    ]
    return found[0] if found else "127.0.0.1"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", own_address()])
def test_it_listens_on_its_own_address_alone(host: str) -> None:
    listener = tcp_store._listen(TcpRendezvous(host, free_port()))
    with listener:
        assert listener.getsockname()[0] == ("127.0.0.1" if host == "localhost" else host)


def test_a_name_or_a_translated_address_needs_all_of_them() -> None:
    with tcp_store._listen(TcpRendezvous("203.0.113.7", free_port())) as listener:
        assert listener.getsockname()[0] in ("::", "0.0.0.0")


def test_the_store_answers_there() -> None:
    store = tcp_store.open_store(TcpRendezvous(own_address(), free_port()), 0, 2, 0.0, 10.0)
    store.set("key", "value")
    assert store.get("key") == b"value"
