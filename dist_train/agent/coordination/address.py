"""The address by which other nodes reach this one: an --interface's, or the machine's own name."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
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
    """Find name and address of the interface with this name, or with an address in this CIDR.

    Of several addresses an IPv4 one comes first. Link-local addresses do not count: they mean nothing without
    the interface of the host that uses them.
    """
    found = _interface_addresses()
    try:
        network = ipaddress.ip_network(asked, strict=False) if "/" in asked else None
    except ValueError:
        network = None
    for name, address in found:
        if name == asked or (network is not None and ipaddress.ip_address(address) in network):
            return name, address
    there = ", ".join(f"{name} {address}" for name, address in found)
    raise ConfigError(
        f"--interface {asked}: {socket.gethostname()} has no such network interface",
        cause=f"it has {there}",
        hint="give a name that every node has, or a network such as 10.1.0.0/16 or fd00:1::/64",
    )


def own_loopback() -> str:
    """The loopback address that this machine's own name resolves to; empty where it is none.

    gloo binds to the first address of the name that this machine has (Debian's installer writes 127.0.1.1
    into /etc/hosts).
    """
    address = next((each for each in _resolved(socket.gethostname()) if _is_local(each)), "")
    return address if address and ipaddress.ip_address(address).is_loopback else ""


def is_address(host: str) -> bool:
    """Whether a host is given by its IP address, which needs no name service."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def external_address(name: str) -> str:
    """Resolve a name; empty where it is unknown, or has no address by which another machine reaches it."""
    return next(iter(_external(sorted(_resolved(name), key=_version))), "")


def resolves(name: str) -> bool:
    """Whether a name has an address here."""
    return bool(_resolved(name))


def family_of(host: str) -> socket.AddressFamily:
    """The family in which to listen where others connect to this host: IPv4 unless it has none."""
    if is_address(host):
        return _family(host)
    return choose_family(_resolved(host), [address for _, address in _interface_addresses()])


def may_be_reached_by_both(host: str) -> bool:
    """Whether others may connect by IPv4 or by IPv6: they resolve the name, perhaps not as this machine does.

    (A headless Service of a cluster with both families has the addresses of one, the pod has two.)
    """
    own = _external(address for _, address in _interface_addresses())
    return not is_address(host) and any(_version(address) == 6 for address in own)


def choose_family(of_name: Iterable[str], of_machine: Iterable[str]) -> socket.AddressFamily:
    """Choose by the addresses that other machines can reach, first of the name, then of the machine.

    A name may be a loopback address on its own machine alone. Where none can be reached, any counts.
    """
    of_name, of_machine = list(of_name), list(of_machine)
    for addresses in (_external(of_name), _external(of_machine), of_name, of_machine):
        if addresses:
            return _family(min(addresses, key=_version))
    return socket.AF_INET


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if _version(address) == 6 else socket.AF_INET


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


def _external(addresses: Iterable[str]) -> list[str]:
    """Those that another machine can reach."""
    return [each for each in addresses if not _is_local_only(ipaddress.ip_address(each))]


def _is_local_only(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    return address.is_loopback or (address.version == 6 and address.is_link_local)


def _interface_addresses() -> list[tuple[str, str]]:
    """Interfaces with their addresses: by name, IPv4 before IPv6; no link-local ones of IPv6."""
    import psutil

    found = {
        (name, entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family in (socket.AF_INET, socket.AF_INET6) and not _is_link_local_6(entry.address)
    }
    return sorted(found, key=lambda each: (each[0], _version(each[1]), each[1]))


def _is_link_local_6(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return found.version == 6 and found.is_link_local


def _is_local(address: str) -> bool:
    """Whether this machine has the address."""
    try:
        with socket.socket(_family(address), socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _resolved(name: str) -> list[str]:
    """The addresses of a name, in the order of the system; none where it is unknown."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    # A link-local address comes with the interface in it.
    return list(dict.fromkeys(str(each[4][0]) for each in found))
