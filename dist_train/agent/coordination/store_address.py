"""Where the store of an attempt's ranks listens: on the address by which the nodes have reached node 0."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

EVERYWHERE = ""


@dataclass(frozen=True)
class StoreAddress:
    """An address to bind to, and what the ranks are given.

    Attributes:
        bind: a numeric address of this host; empty: all of them.
        advertised: a name or address.
        why: for the log.
    """

    bind: str
    advertised: str
    why: str


def choose_store_address(
    reached: Collection[str], own: Collection[str], host: str, loopback: str = "127.0.0.1"
) -> StoreAddress:
    """Choose it; a pure function.

    Args:
        reached: numeric addresses at which the other nodes' agents have reached node 0, as they see it.
        own: numeric addresses of this host's interfaces.
        host: name or address of node 0 as the launcher gave it, for where no address can be chosen.
        loopback: the address by which this machine reaches itself.
    """
    if all(_is_loopback(address) for address in reached):
        return StoreAddress(loopback, loopback, "all nodes are on this machine")
    asked = sorted(set(reached))
    if len(asked) > 1:
        return StoreAddress(
            EVERYWHERE, host, f"the nodes reach node 0 at several addresses: {', '.join(asked)}"
        )
    [address] = asked
    if address not in own:
        return StoreAddress(
            EVERYWHERE, host, f"the nodes reach node 0 at {address}, which no interface of this host has"
        )
    return StoreAddress(address, address, f"the nodes reach node 0 at {address}")


def own_addresses() -> set[str]:
    """The numeric addresses of this host's interfaces."""
    import psutil

    found = (entry.address for entries in psutil.net_if_addrs().values() for entry in entries)
    return {address.partition("%")[0] for address in found if _is_address(address.partition("%")[0])}


def _is_loopback(address: str) -> bool:
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
