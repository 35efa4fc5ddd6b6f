"""The address by which other nodes reach this one: of --interface, and loopback names."""

from __future__ import annotations

import socket
from typing import Any

import psutil
import pytest

from dist_train.agent.coordination.address import (
    Address,
    choose_family,
    external_address,
    find_interface,
    is_address,
    of_interface,
    own_loopback,
)
from dist_train.errors import ConfigError


class Entry:
    def __init__(self, address: str, family: int = socket.AF_INET) -> None:
        self.address, self.family = address, family


@pytest.fixture(autouse=True)
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a management network, a fast one, and a bridge; named gpu01."""
    there = {
        "lo": [Entry("127.0.0.1"), Entry("::1", socket.AF_INET6)],
        "eno1": [Entry("192.168.0.7"), Entry("aa:bb", getattr(socket, "AF_PACKET", 17))],
        "ib0": [Entry("10.1.2.3"), Entry("fe80::1", socket.AF_INET6)],
        "six": [Entry("fe80::2%six", socket.AF_INET6)],
        "ib6": [Entry("fe80::3%ib6", socket.AF_INET6), Entry("fd00:1::3", socket.AF_INET6)],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    monkeypatch.setattr(socket, "gethostname", lambda: "gpu01")


def resolve(monkeypatch: pytest.MonkeyPatch, **names: str) -> None:
    """Only these names have an address."""

    def getaddrinfo(name: str, *args: Any, **more: Any) -> list[Any]:
        if name not in names:
            raise socket.gaierror(-2, "Name or service not known")
        return [
            (socket.AF_INET6 if ":" in each else socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0))
            for each in names[name].split()
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("asked", ["ib0", "10.1.0.0/16", "10.1.2.3/32", "10.1.9.9/16"])
def test_an_interface_by_name_or_network(asked: str) -> None:
    assert find_interface(asked) == ("ib0", "10.1.2.3")
    assert of_interface(asked) == Address("10.1.2.3", "ib0", f"--interface {asked}: ib0 has 10.1.2.3")


@pytest.mark.parametrize("asked", ["ib6", "fd00:1::/64", "fd00:1::3/128"])
def test_an_interface_with_ipv6_alone(asked: str) -> None:
    assert find_interface(asked) == ("ib6", "fd00:1::3")


@pytest.mark.parametrize("asked", ["ib1", "10.2.0.0/16", "a/b", "six", "fe80::/16"])
def test_an_unknown_interface_lists_the_known_ones(asked: str) -> None:
    with pytest.raises(
        ConfigError, match=f"--interface {asked}: gpu01 has no such network interface"
    ) as caught:
        of_interface(asked)
    assert caught.value.cause == "it has eno1 192.168.0.7, ib0 10.1.2.3, ib6 fd00:1::3, lo 127.0.0.1, lo ::1"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("127.0.1.1", "127.0.1.1"),
        ("127.0.0.1", "127.0.0.1"),
        ("10.1.2.3", ""),
        (
            "10.1.2.3 127.0.0.1",
            "127.0.0.1",
        ),  # the first is not this machine's: gloo binds the next
    ],
)
def test_whether_the_machines_own_name_is_a_loopback_address(
    monkeypatch: pytest.MonkeyPatch, address: str, found: str
) -> None:
    resolve(monkeypatch, gpu01=address)
    assert own_loopback() == found


def test_a_machine_whose_name_does_not_resolve_has_no_loopback_name(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch)
    assert own_loopback() == ""


@pytest.mark.parametrize(("host", "known"), [("10.8.0.3", True), ("fe80::1", True), ("train-0.train", False)])
def test_ip_addresses_need_no_name_service(host: str, known: bool) -> None:
    assert is_address(host) is known


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ("127.0.1.1 10.1.2.3 192.168.0.7", "10.1.2.3"),
        ("fd00:1::3 10.1.2.3", "10.1.2.3"),
        ("::1 fe80::3%ib6 fd00:1::3", "fd00:1::3"),
        ("127.0.1.1 ::1 fe80::3%ib6", ""),
    ],
)
def test_the_address_of_a_name_that_another_machine_can_reach(
    monkeypatch: pytest.MonkeyPatch, addresses: str, found: str
) -> None:
    resolve(monkeypatch, gpu01=addresses)
    assert external_address("gpu01") == found


@pytest.mark.parametrize(
    ("of_name", "of_machine", "family"),
    [
        ("10.1.2.3", "", socket.AF_INET),
        ("fd00::5 10.1.2.3", "10.1.2.3 fd00::5", socket.AF_INET),
        ("fd00::5", "172.17.0.1 fd00::5", socket.AF_INET6),  # a bridge of Docker beside
        ("127.0.1.1", "127.0.0.1 10.1.2.3", socket.AF_INET),
        ("127.0.1.1", "127.0.0.1 ::1 fd00::5", socket.AF_INET6),  # Debian's line in /etc/hosts
        ("127.0.0.1 ::1", "127.0.0.1 ::1", socket.AF_INET),
        ("::1", "::1", socket.AF_INET6),
        ("", "::1 fd00::5", socket.AF_INET6),
        ("fe80::1%eth0", "127.0.0.1 10.1.2.3", socket.AF_INET),
        ("", "", socket.AF_INET),
    ],
)
def test_the_family_to_listen_in(of_name: str, of_machine: str, family: int) -> None:
    assert choose_family(of_name.split(), of_machine.split()) == family
