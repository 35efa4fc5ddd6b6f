"""Whether the nodes that joined may run together: one run directory, reachable ranks, one fingerprint."""

from __future__ import annotations

from collections.abc import Mapping

from dist_train.agent.coordination.membership_line import node_names
from dist_train.agent.coordination.messages import Join


def disagreement(joins: Mapping[int, Join], nonce: str) -> str | None:
    """Return why these nodes cannot run together, naming them; None where they can.

    Args:
        joins: node rank -> what the node sent; of all nodes.
        nonce: what node 0 wrote into the run directory.
    """
    return (
        _unshared_directory(joins, nonce)
        or _unreachable_ranks(joins)
        or _cannot_start(joins)
        or _different_fingerprint(joins)
    )


def _unshared_directory(joins: Mapping[int, Join], nonce: str) -> str | None:
    without = [join for join in joins.values() if join.nonce != nonce]
    names = node_names(f"node {join.node} ({join.host})" for join in without)
    return f"the run directory is not shared by {names}" if without else None


def _unreachable_ranks(joins: Mapping[int, Join]) -> str | None:
    on_loopback = [join for join in joins.values() if join.loopback]
    if not on_loopback or len({join.machine for join in joins.values()}) == 1:
        return None
    names = node_names(f"{join.machine} -> {join.loopback} on node {join.node}" for join in on_loopback)
    return (
        f"a machine's own name resolves to a loopback address there ({names}): ranks elsewhere could "
        "not reach its ranks; name the network between the nodes with --interface NAME or CIDR"
    )


def _cannot_start(joins: Mapping[int, Join]) -> str | None:
    refused = [joins[node] for node in sorted(joins) if joins[node].cannot_start]
    if not refused:
        return None
    first, more = refused[0], len(refused) - 1
    return f"node {first.node} ({first.host}){f' and {more} more' * bool(more)}: {first.cannot_start}"


def _different_fingerprint(joins: Mapping[int, Join]) -> str | None:
    reference = joins[0].fingerprint
    for join in joins.values():
        different = [key for key, value in join.fingerprint.items() if reference.get(key) != value]
        if different:
            differences = ", ".join(
                f"{key}: {join.fingerprint[key]} there, {reference.get(key)} on node 0" for key in different
            )
            return f"node {join.node} ({join.host}) differs from node 0: {differences}"
    return None
