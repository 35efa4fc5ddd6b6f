"""Hosts with ports as text, and the loopback address."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dist_train.jobs import host_port as module
from dist_train.jobs.host_port import host_port, listen_at, loopback, loopback_of, split_host_port


@pytest.mark.parametrize(
    ("host", "text"), [("n1", "n1:80"), ("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80")]
)
def test_an_ipv6_address_has_brackets(host: str, text: str) -> None:
    assert host_port(host, 80) == text
    assert split_host_port(f"{text}\n") == (host, 80)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_is_reached_at_its_loopback_address(host: str) -> None:
    with listen_at(host) as listener:
        assert loopback_of(listener) == host
        socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()


def test_a_machine_without_ipv4_has_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loopback() == "127.0.0.1"

    class NoAddress(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(module.socket, "socket", NoAddress)
    assert loopback() == "::1"
