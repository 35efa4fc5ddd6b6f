"""The store that node 0 opens for the ranks of an attempt: where it listens, and what ranks are told."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from dist_train.agent import node_zero as node_zero_module
from dist_train.agent.coordination.store_address import EVERYWHERE, StoreAddress, choose_store_address
from dist_train.agent.node_zero import NodeZero

OWN = {"127.0.0.1", "10.1.0.5", "192.168.0.5", "fd00::5"}


@pytest.mark.parametrize(
    ("reached", "bind", "advertised"),
    [
        ((), "127.0.0.1", "127.0.0.1"),  # one node
        (("127.0.0.1",), "127.0.0.1", "127.0.0.1"),
        (("127.0.1.1", "127.0.0.1"), "127.0.0.1", "127.0.0.1"),  # Debian's name of this machine
        (("::1",), "127.0.0.1", "127.0.0.1"),
        (("10.1.0.5",), "10.1.0.5", "10.1.0.5"),
        (("10.1.0.5", "192.168.0.5"), EVERYWHERE, "gpu01"),
        (("127.0.0.1", "10.1.0.5"), EVERYWHERE, "gpu01"),
        (("203.0.113.7",), EVERYWHERE, "gpu01"),  # translated on the way
        (("",), EVERYWHERE, "gpu01"),
    ],
)
def test_the_address_is_that_at_which_the_nodes_reach_node_0(
    reached: tuple[str, ...], bind: str, advertised: str
) -> None:
    chosen = choose_store_address(reached, OWN, "gpu01")
    assert (chosen.bind, chosen.advertised) == (bind, advertised)


@pytest.mark.parametrize("reached", [("10.1.0.5", "192.168.0.5"), ("203.0.113.7",)])
def test_where_none_can_be_chosen_the_reason_names_the_addresses(reached: tuple[str, ...]) -> None:
    why = choose_store_address(reached, OWN, "gpu01").why
    assert all(address in why for address in reached)


def opened(host: str, *reached: str) -> tuple[tuple[str, int], list[str], list[str]]:
    """What node 0 publishes, the addresses on which the store listens, and what the user is told."""
    node_zero: Any = object.__new__(NodeZero)
    said: list[str] = []
    node_zero._settings, node_zero._note = None, said.append
    node_zero._platform = SimpleNamespace(store_host=lambda settings: host)
    published = node_zero._open_store(frozenset(reached))
    assert TCPStore(published[0], published[1], timeout=timedelta(seconds=10)).num_keys() >= 0
    found = [
        each.laddr.ip
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == published[1]
    ]
    return published, found, said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "gpu01.example"])
def test_on_one_machine_it_listens_on_loopback_alone(host: str) -> None:
    """On IPv4: torch's server looks up each rank's address, and ::ffff:127.0.0.1 is in no /etc/hosts."""
    published, found, said = opened(host, "127.0.0.1")
    assert (published[0], found, said) == ("127.0.0.1", ["127.0.0.1"], [])


def test_between_machines_it_listens_on_the_advertised_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        node_zero_module,
        "choose_store_address",
        lambda reached, own, host, loopback: StoreAddress("127.0.0.2", "127.0.0.2", "as an interface's"),
    )
    published, found, _ = opened("gpu01", "127.0.0.2")
    assert (published[0], found) == ("127.0.0.2", ["127.0.0.2"])


def test_where_it_must_listen_everywhere_a_line_says_so() -> None:
    published, found, said = opened("localhost", "203.0.113.7")
    assert (published[0], found) == ("localhost", ["0.0.0.0"])
    assert said == [
        "the ranks' store listens on all addresses of this host: "
        "the nodes reach node 0 at 203.0.113.7, which no interface of this host has"
    ]


def test_its_own_client_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that leads to ::1, or to nothing here, kept node 0 waiting for the store's time-out."""
    node_zero: Any = object.__new__(NodeZero)
    node_zero._settings, node_zero._note = None, lambda text: None
    node_zero._platform = SimpleNamespace(store_host=lambda settings: "ip6-only.invalid")
    assert node_zero._open_store(frozenset({"203.0.113.7"}))[0] == "ip6-only.invalid"


def test_torch_lists_the_keys_to_whoever_connects() -> None:
    """What SECURITY.md says of the prefix: it hides nothing from a client that asks for the names."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    PrefixStore("secret", server).set("key", "value")
    stranger = TCPStore("127.0.0.1", server.port, timeout=timedelta(seconds=10))
    if hasattr(stranger, "list_keys"):
        assert any("secret" in key for key in stranger.list_keys())
