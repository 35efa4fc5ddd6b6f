"""Interfaces of this node, the one that its ranks use, InfiniBand ports."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from dist_train import env
from dist_train.agent.coordination.address import external_address, own_loopback
from dist_train.doctor.facts import InfinibandPort, Interface, NetworkFacts

_VARIABLE = "GLOO_SOCKET_IFNAME"


def read_network(environ: Mapping[str, str]) -> NetworkFacts:
    """The network as the ranks will use it: by the variable, else by what this machine's name means."""
    interfaces = read_interfaces()
    asked = environ.get(_VARIABLE, "")
    option = environ.get(env.INTERFACE)
    loopback = "" if asked else own_loopback()
    if asked:
        name, address = asked, address_of(interfaces, asked)
        chosen_by = f"--interface {option}" if option else f"{_VARIABLE}={asked}"
    else:
        host = socket.gethostname()
        address = loopback or external_address(host) or _outgoing(environ.get("MASTER_ADDR", ""))
        name, chosen_by = interface_of(interfaces, address), f"the name {host}"
    return NetworkFacts(
        interfaces=interfaces,
        infiniband=read_infiniband(),
        interface=name,
        address=address,
        chosen_by=chosen_by,
        loopback=loopback,
        missing=asked if asked and not address else "",
    )


def read_interfaces() -> tuple[Interface, ...]:
    """Every interface with its IP addresses; link-local ones of IPv6 do not count."""
    import psutil

    states = psutil.net_if_stats()
    found = []
    for name, entries in sorted(psutil.net_if_addrs().items()):
        addresses = [
            entry.address
            for entry in entries
            if entry.family in (socket.AF_INET, socket.AF_INET6) and not _is_link_local(entry.address)
        ]
        state = states.get(name)
        up, mtu, speed = (True, 0, 0) if state is None else (state.isup, state.mtu, state.speed)
        # -1 of a virtual interface comes as 65535 on some kernels.
        known = speed if 0 < speed != 65535 else 0
        found.append(Interface(name=name, addresses=tuple(addresses), up=up, mtu=mtu, speed=known))
    return tuple(found)


def address_of(interfaces: tuple[Interface, ...], name: str) -> str:
    """The first address of an interface; empty where there is none."""
    found = [each for each in interfaces if each.name == name]
    return found[0].addresses[0] if found and found[0].addresses else ""


def interface_of(interfaces: tuple[Interface, ...], address: str) -> str:
    """The interface that has an address; a loopback address that none has is of lo."""
    named = next((each.name for each in interfaces if address in each.addresses), "")
    return named or ("lo" if address.startswith("127.") else "")


def read_infiniband(root: Path = Path("/sys/class/infiniband")) -> tuple[InfinibandPort, ...]:
    """InfiniBand and RoCE ports; none without adapters."""
    found = []
    for folder in sorted(root.glob("*/ports/*")):
        rate = re.match(r"[\d.]+", _read(folder / "rate"))
        found.append(
            InfinibandPort(
                device=folder.parts[-3],
                port=int(folder.name),
                active="ACTIVE" in _read(folder / "state"),
                rate=float(rate[0]) if rate else 0.0,
            )
        )
    return tuple(found)


def _outgoing(host: str) -> str:
    """The own address by which packets to a host leave; nothing is sent."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_link_local(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return True
    return found.version == 6 and found.is_link_local


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
