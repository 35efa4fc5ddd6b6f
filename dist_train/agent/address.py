"""Which address of this node the others use: by --interface, by the cluster's word for it, by its name."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from dist_train import env
from dist_train.errors import ConfigError

_SLURM_NAME = "SLURMD_NODENAME"


@dataclass(frozen=True)
class Address:
    """What node 0 publishes, and the network interface that the ranks are bound to (if one was asked for)."""

    host: str
    interface: str | None
    why: str


def choose(environ: Mapping[str, str]) -> Address:
    """Raises ConfigError for an --interface that this node does not have."""
    asked = environ.get(env.INTERFACE)
    if asked:
        name, address = find_interface(asked)
        return Address(address, name, f"--interface {asked}: {name} has {address}")
    name = environ.get(_SLURM_NAME, "")
    if name and environ.get(env.LAUNCHER) == "slurm" and _resolves(name):
        return Address(name, None, f"{_SLURM_NAME}={name}")
    own = socket.gethostname()
    if environ.get(env.LAUNCHER) == "kubernetes" and (pods := _address_of(own)):
        return Address(pods, None, f"the pod's own address; its name is {own}")
    why = f"{_SLURM_NAME}={name} does not resolve here, so " if name else ""
    return Address(own, None, f"{why}the machine's own name {own}")


def find_interface(asked: str) -> tuple[str, str]:
    """Name and IPv4 address of the interface with this name, or with an address in this CIDR."""
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
        mend="give a name that every node has, or a network such as 10.1.0.0/16",
    )


def own_loopback() -> str:
    """The loopback address that this machine's own name resolves to; empty where it is none.

    gloo binds to what the name resolves to (Debian's installer writes 127.0.1.1 into /etc/hosts).
    """
    address = _resolved(socket.gethostname())
    return address if address and ipaddress.ip_address(address).is_loopback else ""


def is_address(host: str) -> bool:
    """Whether it needs no name service."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _address_of(name: str) -> str:
    """What others may reach; empty where the name is unknown or leads back to this machine alone."""
    address = _resolved(name)
    return "" if not address or ipaddress.ip_address(address).is_loopback else address


def _resolves(name: str) -> bool:
    return bool(_resolved(name))


def _resolved(name: str) -> str:
    """The first IPv4 address of a name; empty where it has none."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return ""
    return str(found[0][4][0])
