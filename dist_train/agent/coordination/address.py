"""The address by which other nodes reach this one: an --interface's, or the machine's own name."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from dist_train.errors import ConfigError


@dataclass(frozen=True)
class Address:
    """What node 0 publishes, and the network interface that the ranks are bound to (if one was given)."""

    host: str
    interface: str | None
    why: str


def of_interface(interface: str) -> Address:
    """Resolve --interface; raises ConfigError for one that this node does not have."""
    name, address = find_interface(interface)
    return Address(address, name, f"--interface {interface}: {name} has {address}")


def of_this_host(because: str = "") -> Address:
    """The machine's own name; `because` begins the reason in the log."""
    name = socket.gethostname()
    return Address(name, None, f"{because}the machine's own name {name}")


def find_interface(asked: str) -> tuple[str, str]:
    """Find name and IPv4 address of the interface with this name, or with an address in this CIDR."""
    import psutil

    found = {
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET
    }
    try:
        network = ipaddress.ip_network(asked, strict=False) if "/" in asked else None
    except ValueError:
        network = None
    for name, address in sorted(found):
        if name == asked or (network is not None and ipaddress.ip_address(address) in network):
            return name, address
    there = ", ".join(f"{name} {address}" for name, address in sorted(found))
    raise ConfigError(
        f"--interface {asked}: {socket.gethostname()} has no such network interface",
        cause=f"it has {there}",
        hint="give a name that every node has, or a network such as 10.1.0.0/16",
    )


def own_loopback() -> str:
    """The loopback address that this machine's own name resolves to; empty where it is none.

    gloo binds to what the name resolves to (Debian's installer writes 127.0.1.1 into /etc/hosts).
    """
    address = _resolved(socket.gethostname())
    return address if address and ipaddress.ip_address(address).is_loopback else ""


def is_address(host: str) -> bool:
    """Whether a host is given by its IP address, which needs no name service."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def external_address(name: str) -> str:
    """Resolve a name; empty where it is unknown, or a loopback address that no other machine reaches."""
    address = _resolved(name)
    return "" if not address or ipaddress.ip_address(address).is_loopback else address


def resolves(name: str) -> bool:
    """Whether a name has an IPv4 address here."""
    return bool(_resolved(name))


def _resolved(name: str) -> str:
    """The first IPv4 address of a name; empty where it has none."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ""
    return str(found[0][4][0])
