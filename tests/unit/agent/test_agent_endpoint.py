"""Endpoints with IPv6 addresses: parsed, listened on, published, named in errors."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from dist_train.agent.coordination.endpoint import Endpoint, connect
from dist_train.agent.coordination.handshake import Identity
from dist_train.errors import RendezvousError
from dist_train.jobs.host_port import loopback_of


class Entry(NamedTuple):
    """An address of an interface, as psutil has it."""

    address: str
    family: int


def test_an_address_in_brackets_is_parsed() -> None:
    assert Endpoint.parse("tcp://[fd00::1]:29500") == Endpoint("fd00::1", 29500)


@pytest.mark.parametrize(
    ("advertised", "family"),
    [("127.0.0.1", socket.AF_INET), ("10.1.2.3", socket.AF_INET), ("fd00::1", socket.AF_INET6)],
)
def test_node_0_listens_in_the_family_that_it_publishes(tmp_path: Path, advertised: str, family: int) -> None:
    endpoint = Endpoint.parse(f"file://{tmp_path}/rdzv")
    with endpoint.listen(advertised) as listener:
        port = listener.getsockname()[1]
        assert listener.family == family
        assert endpoint.locate() == (advertised, port)
        # On IPv6 it takes both: another node may know node 0 by an IPv4 address too.
        for host in ("127.0.0.1", "::1") if family == socket.AF_INET6 else ("127.0.0.1",):
            socket.create_connection((host, port), timeout=5).close()


def test_the_endpoints_own_address_decides_where_it_has_one() -> None:
    """By hand: tcp://[::1]:0 on a machine whose name has an IPv4 address."""
    with Endpoint("::1", 0).listen("10.1.2.3") as listener:
        assert listener.family == socket.AF_INET6


def test_a_name_may_have_another_family_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod with both families publishes its IPv4 address, and the headless Service has IPv6 ones alone."""
    there = {"eth0": [Entry("10.8.0.3", socket.AF_INET), Entry("fd00:8::3", socket.AF_INET6)]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    with Endpoint("train-0.train", 0).listen("10.8.0.3") as listener:
        port = listener.getsockname()[1]
        assert loopback_of(listener) == "127.0.0.1"
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=5).close()
    del there["eth0"][1]
    with Endpoint("train-0.train", 0).listen("10.8.0.3") as listener:
        assert listener.family == socket.AF_INET, "as ever, where there is no IPv6"


def test_an_error_names_it_with_its_brackets() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(RendezvousError, match=rf"\[::1\]:{port}: Connection refused"):
        connect(Endpoint("::1", port), Identity("r", b"k"), 1, 0.0, lambda text: None, lambda: False)
