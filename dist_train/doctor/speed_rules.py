"""How fast links and the all-reduce are, against what the hardware should give and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from dist_train.doctor.facts import AllReduceSpeed, Facts, LinkSpeed, NodeFacts
from dist_train.doctor.finding import Finding
from dist_train.rundir.format_amounts import size

# One way, bytes per second and lane of PCIe, by generation.
_PCIE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
# Of the expected: NCCL comes near it; gloo copies through the kernel with one thread.
_ENOUGH = {"nccl": 0.5, "gloo": 0.1}
_ODD = 0.5  # of the median of like links
_FEW = 3


def speed_findings(facts: Facts) -> Iterator[Finding]:
    """Slow links, wrong results, the all-reduce of all ranks."""
    ranks = facts.job.nodes * facts.job.procs
    if ranks < 2:
        yield Finding("skipped", "all-reduce", "one rank: --gpus-per-node 2 or --nodes 2 would have links")
        return
    for kind, links in (("links within a node", _within(facts)), ("links between nodes", _between(facts))):
        yield from _links(facts, kind, links)
    for reduced in facts.all_reduces:
        yield _all_reduce(reduced)


def _within(facts: Facts) -> list[LinkSpeed]:
    return [link for link in facts.links if link.nodes[0] == link.nodes[1]]


def _between(facts: Facts) -> list[LinkSpeed]:
    return [link for link in facts.links if link.nodes[0] != link.nodes[1]]


def _links(facts: Facts, kind: str, links: list[LinkSpeed]) -> Iterator[Finding]:
    if not links:
        return
    typical = median(link.rate for link in links)
    slow = []
    for link in links:
        wanted, why = expected_rate(facts, link)
        enough = _ENOUGH.get(link.backend, _ENOUGH["gloo"])
        if wanted is not None and link.rate < enough * wanted:
            cause = f"{why} should give {rate(wanted)}; {link.backend} reaches {enough:.0%} of it or more"
        elif len(links) >= _FEW and link.rate < _ODD * typical:
            cause = f"the median of {len(links)} such links is {rate(typical)}"
        else:
            continue
        slow.append(link)
        yield Finding("warning", kind, f"{_name(link)}: {rate(link.rate)}", _nodes(link), cause, _hint(link))
    if not slow:
        slowest = min(links, key=lambda link: link.rate)
        wanted, why = expected_rate(facts, slowest)
        against = "" if wanted is None else f"; {why}: {rate(wanted)}"
        nodes = tuple(sorted({node for link in links for node in link.nodes}))
        value = f"{slowest.backend}, {len(links)} measured, slowest {rate(slowest.rate)}{against}"
        yield Finding("ok", kind, value, nodes)


def expected_rate(facts: Facts, link: LinkSpeed) -> tuple[float | None, str]:
    """What the hardware of a link should give, in bytes per second, and which that is; None: not known."""
    first, second = (facts.node(number) for number in link.nodes)
    if first is None or second is None:
        return None, ""
    if link.nodes[0] == link.nodes[1]:
        return _of_gpus(first, link, facts.job.procs) if link.backend == "nccl" else (None, "")
    if first.host == second.host:
        return None, ""  # simulated nodes
    if link.backend == "nccl" and (slower := _infiniband(first, second)):
        return slower, "InfiniBand"
    speeds = [_interface_speed(node) for node in (first, second)]
    if not all(speeds):
        return None, ""
    return min(speeds) * 1e6 / 8, f"interface {first.network.interface}"


def _of_gpus(node: NodeFacts, link: LinkSpeed, procs: int) -> tuple[float | None, str]:
    places = [rank % procs for rank in link.ranks]
    if max(places) >= len(node.gpus):
        return None, ""
    gpus = [node.gpus[place] for place in places]
    nvlink = [sum(each.rate or 0.0 for each in gpu.nvlinks if each.active) for gpu in gpus]
    if all(nvlink):
        return min(nvlink), "NVLink"
    pcie = [_PCIE.get(gpu.pcie_generation or 0, 0.0) * (gpu.pcie_width or 0) for gpu in gpus]
    return (min(pcie), "PCIe") if all(pcie) else (None, "")


def _infiniband(*nodes: NodeFacts) -> float:
    """The fastest port of the slower node: a pair of ranks uses one."""
    best = [
        max((port.rate for port in node.network.infiniband if port.active), default=0.0) for node in nodes
    ]
    return min(best) * 1e9 / 8


def _interface_speed(node: NodeFacts) -> int:
    found = [each.speed for each in node.network.interfaces if each.name == node.network.interface]
    return found[0] if found else 0


def _all_reduce(reduced: AllReduceSpeed) -> Finding:
    check = "all-reduce"
    what = f"{reduced.backend}, {reduced.ranks} ranks, {size(reduced.size)}"
    if reduced.wrong:
        return Finding(
            "error",
            check,
            f"{what}: {reduced.wrong}",
            (),
            "a training would go on with such gradients",
            "run it again with half of the nodes to find the one; do not train on them",
        )
    if reduced.size < 1 << 16:
        return Finding("ok", check, f"{what}: {reduced.seconds * 1e6:.0f} us")
    return Finding(
        "ok", check, f"{what}: {reduced.seconds * 1e3:.1f} ms, {rate(reduced.bus_rate)} over each link"
    )


def rate(per_s: float) -> str:
    """`12.3 GB/s`: as NICs and nccl-tests count, in powers of ten."""
    return f"{per_s / 1e9:.1f} GB/s" if per_s >= 1e9 else f"{per_s / 1e6:.0f} MB/s"


def _name(link: LinkSpeed) -> str:
    return f"{link.backend}, rank {link.ranks[0]} to rank {link.ranks[1]}"


def _nodes(link: LinkSpeed) -> tuple[int, ...]:
    return tuple(sorted(set(link.nodes)))


def _hint(link: LinkSpeed) -> str:
    if link.nodes[0] == link.nodes[1]:
        return "`nvidia-smi topo -m` and `nvidia-smi nvlink -s` on that node; NCCL_DEBUG=INFO says the path"
    return (
        "is it the intended interface (--interface)? `ethtool IFACE`, `ibstat`; NCCL_DEBUG=INFO says the path"
    )
