"""Whether nodes reach each other, by which interface, and whether their clocks agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dist_train.doctor.facts import Facts, Interface, NodeFacts, PeerFacts
from dist_train.doctor.finding import Finding

_VIRTUAL = ("docker", "veth", "virbr", "br-", "cni", "flannel", "lxc", "lo")
_SKEW_S = 1.0


def network_findings(facts: Facts) -> Iterator[Finding]:
    """Missing nodes, interfaces, connections and clocks."""
    yield from _missing(facts)
    for node in facts.nodes:
        yield from _interface(facts, node)
    yield from _mtu(facts)
    if facts.job.nodes < 2:
        yield Finding("skipped", "connections", "one node")
        return
    yield from _connections(facts)
    yield from _clocks(facts)


def _missing(facts: Facts) -> Iterator[Finding]:
    absent = tuple(number for number in range(facts.job.nodes) if facts.node(number) is None)
    if absent:
        yield Finding(
            "error",
            "nodes",
            f"{len(absent)} of {facts.job.nodes} have said nothing",
            absent,
            "its rank did not start, or node 0 does not see what it wrote into the run directory",
            "the job's log names what each agent waits for: dist-train logs @last",
        )
    for node in facts.nodes:
        for problem in node.problems:
            yield Finding("warning", "nodes", problem, (node.node,), "this could not be looked at", "")


def _interface(facts: Facts, node: NodeFacts) -> Iterator[Finding]:
    network = node.network
    if network.missing:
        names = ", ".join(each.name for each in network.interfaces)
        yield Finding(
            "error",
            "interface",
            f"there is no {network.missing}",
            (node.node,),
            f"{network.chosen_by} names it, and this node has {names}",
            "--interface with a network such as 10.1.0.0/16, where names differ between nodes",
        )
        return
    used = next((each for each in network.interfaces if each.name == network.interface), None)
    if used is None:
        return
    several = facts.machines > 1
    if several and network.loopback:
        yield Finding(
            "error",
            "interface",
            f"its own name means {network.loopback}",
            (node.node,),
            "gloo listens there, where no other node reaches it (/etc/hosts of Debian says 127.0.1.1)",
            "--interface NAME, or put the node's address into /etc/hosts",
        )
    elif several and used.name.startswith(_VIRTUAL):
        yield Finding(
            "error",
            "interface",
            f"{used.name} {network.address}",
            (node.node,),
            "a bridge or loopback of this machine alone",
            "--interface NAME, the network between the nodes",
        )
    else:
        yield from _slow_choice(node, used, several)


def _slow_choice(node: NodeFacts, used: Interface, several: bool) -> Iterator[Finding]:
    value = f"{used.name} {node.network.address}{_speed(used.speed)}, by {node.network.chosen_by}"
    others = [
        each
        for each in node.network.interfaces
        if each.up and each.addresses and not each.name.startswith(_VIRTUAL)
    ]
    fastest = max(others, key=lambda each: each.speed, default=used)
    if several and used.speed and fastest.speed >= 2 * used.speed:
        yield Finding(
            "warning",
            "interface",
            value,
            (node.node,),
            f"{fastest.name} is faster{_speed(fastest.speed)}",
            f"--interface {fastest.name}",
        )
    else:
        yield Finding("ok", "interface", value, (node.node,))


def _speed(mbit: int) -> str:
    return f" ({mbit / 1000:g} Gbit/s)" if mbit > 0 else ""


def _mtu(facts: Facts) -> Iterator[Finding]:
    mtus = {
        node.node: each.mtu
        for node in facts.nodes
        for each in node.network.interfaces
        if each.name == node.network.interface and each.mtu
    }
    counts = Counter(mtus.values())
    if len(counts) < 2:
        return
    usual = counts.most_common(1)[0][0]
    for node, mtu in mtus.items():
        if mtu != usual:
            yield Finding(
                "warning",
                "interface",
                f"MTU {mtu}, where others have {usual}",
                (node,),
                "small messages pass and large ones are lost, so that the first all-reduce hangs",
                f"ip link set dev IFACE mtu {usual} on that node",
            )


def _connections(facts: Facts) -> Iterator[Finding]:
    failed = [peer for peer in facts.peers if peer.problem]
    odd = _common_node(failed)
    for peer in failed:
        also = f"; node {odd} is in all failed pairs" if odd is not None and len(failed) > 1 else ""
        yield Finding(
            "error",
            "connections",
            f"node {peer.node} does not reach node {peer.peer} at {peer.address}: {peer.problem}",
            (peer.node, peer.peer),
            f"ranks of all nodes connect to each other, on any port{also}",
            "open all TCP ports between the nodes (firewall, security group, NetworkPolicy); or --interface",
        )
    passed = [peer for peer in facts.peers if not peer.problem]
    if passed and not failed:
        slowest = max(passed, key=lambda peer: peer.round_trip_s or 0.0)
        yield Finding(
            "ok",
            "connections",
            f"{len(passed)} pairs of nodes, slowest round trip {(slowest.round_trip_s or 0) * 1e3:.2f} ms",
            tuple(node.node for node in facts.nodes),
        )


def _common_node(failed: list[PeerFacts]) -> int | None:
    """The node that has part in every failed pair."""
    common = set.intersection(*({peer.node, peer.peer} for peer in failed)) if failed else set()
    return min(common) if len(common) == 1 else None


def _clocks(facts: Facts) -> Iterator[Finding]:
    """Each node's clock against node 0's: node 0's is ahead by `clock_ahead_s`."""
    known = [peer for peer in facts.peers if peer.peer == 0 and peer.clock_ahead_s is not None]
    wrong = [peer for peer in known if abs(peer.clock_ahead_s or 0.0) > _SKEW_S]
    # Where most nodes differ from node 0 by the same, it is node 0's clock.
    if len(wrong) > 1 and len(wrong) == len(known):
        yield _skew(0, f"{-(wrong[0].clock_ahead_s or 0.0):+.1f} s against node {wrong[0].node}")
        return
    for peer in wrong:
        yield _skew(peer.node, f"{-(peer.clock_ahead_s or 0.0):+.1f} s against node 0")
    if known and not wrong:
        largest = max(abs(peer.clock_ahead_s or 0.0) for peer in known)
        nodes = (0, *(peer.node for peer in known))
        yield Finding("ok", "clock", f"at most {largest * 1e3:.1f} ms apart", nodes)


def _skew(node: int, value: str) -> Finding:
    return Finding(
        "warning",
        "clock",
        value,
        (node,),
        "times in logs do not compare, `make`-like tools rebuild, and tickets (Kerberos, munge, TLS) expire",
        "start chrony or ntpd there: `chronyc tracking`",
    )
