"""Which nodes are here and which are missing, in one line however many there are."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN = 8


def node_names(names: Iterable[str]) -> str:
    """Join the first names; the others are counted."""
    found = list(names)
    more = len(found) - SHOWN
    return ", ".join(found) if more <= 0 else f"{', '.join(found[:SHOWN])} and {more} more"


def nodes_here(names: Iterable[str]) -> str:
    """Join the names of those that are here; of many only their number is of use."""
    found = list(names)
    return (", ".join(found) or "nobody") if len(found) <= SHOWN else f"{len(found)} nodes"
