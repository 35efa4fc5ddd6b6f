"""Divide cores among ranks: a pure function of the cores, the number of ranks and the GPUs' NUMA nodes.

Hardware threads of one core stay together, no core has two ranks (with `cores`), and a rank has cores of
several NUMA nodes only where there are fewer ranks than nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from dist_train.errors import ConfigError
from dist_train.jobs.cores.cpu_topology import Core
from dist_train.rundir.cpu_list import cpu_list


@dataclass(frozen=True)
class Placement:
    """The CPUs of each local rank.

    Args:
        threads: physical cores of the rank that has fewest; of a core with several ranks, its fraction.
        notes: what is not as it may be expected, in words.
    """

    cpus: tuple[frozenset[int], ...]
    threads: int
    notes: tuple[str, ...] = ()


def place_by_cores(cores: Sequence[Core], ranks: int, near: Sequence[int | None] = ()) -> Placement:
    """Each rank gets cores of its own.

    Args:
        near: the NUMA node of each rank's GPU; empty where there are none, None where it is not known.

    Raises:
        ConfigError: fewer cores than ranks.
    """
    if len(cores) < ranks:
        cpus = cpu_list(cpu for core in cores for cpu in core.cpus)
        raise ConfigError(
            f"{ranks} ranks need {ranks} cores of their own, and {len(cores)} may be used here (CPUs {cpus})",
            cause="what the batch system, the container or taskset gave this node is divided, never more",
            hint="--cpus-per-gpu N asks a cluster for more; --bind numa or none shares cores between ranks",
        )
    nodes, notes = _near_nodes(cores, ranks, near, own_core=True)
    parts: list[tuple[Core, ...]] = [()] * ranks
    for group in dict.fromkeys(nodes):
        members = [rank for rank, its in enumerate(nodes) if its == group]
        pieces = _pieces([core for core in cores if core.numa_node in group], len(members))
        for rank, piece in zip(members, pieces, strict=True):
            parts[rank] = piece
    return _placement(cores, [_cpus(part) for part in parts], notes)


def place_by_numa(cores: Sequence[Core], ranks: int, near: Sequence[int | None] = ()) -> Placement:
    """Each rank gets every core of its NUMA node; ranks of one node share them. Arguments as above."""
    nodes, notes = _near_nodes(cores, ranks, near, own_core=False)
    chosen = [_cpus(core for core in cores if core.numa_node in group) for group in nodes]
    return _placement(cores, chosen, notes)


def place_by_lists(
    cores: Sequence[Core], ranks: int, lists: Sequence[frozenset[int]], machine: frozenset[int]
) -> Placement:
    """Each rank gets the CPUs that the user wrote for it.

    Args:
        machine: all CPUs of the machine, allowed or not; empty: not known.

    Raises:
        ConfigError: a list too few or too many, a CPU that does not exist or that may not be used.
    """
    if len(lists) != ranks:
        raise ConfigError(
            f"--bind has {len(lists)} list(s) of CPUs, and each node has {ranks} rank(s)",
            hint="one list for each local rank, with / between them: 0-3,8/4-7",
        )
    allowed = _cpus(cores)
    for rank, wanted in enumerate(lists):
        if outside := wanted - allowed:
            absent = machine and outside - machine
            raise ConfigError(
                f"--bind gives local rank {rank} CPUs that it may not have: {cpu_list(outside)}",
                cause=f"this machine has the CPUs {cpu_list(machine)}"
                if absent
                else "the batch system, the container or taskset left them out",
                hint=f"the CPUs that may be used here: {cpu_list(allowed)}",
            )
    times = Counter(cpu for wanted in lists for cpu in wanted)
    shared = cpu_list(cpu for cpu, count in times.items() if count > 1)
    return _placement(cores, list(lists), (f"CPUs of several ranks: {shared}",) if shared else ())


def _near_nodes(
    cores: Sequence[Core], ranks: int, near: Sequence[int | None], own_core: bool
) -> tuple[list[tuple[int, ...]], tuple[str, ...]]:
    """NUMA nodes of each rank: that of its GPU, else ranks are spread by the number of cores."""
    if not near:
        return _spread(cores, ranks), ()
    if any(node is None for node in near):
        return _spread(cores, ranks), ("the system does not tell which NUMA node is near which GPU",)
    known = [node for node in near if node is not None]
    sizes = Counter(core.numa_node for core in cores)
    for node, members in Counter(known).items():
        if own_core and sizes[node] < members:
            few = (
                f"NUMA node {node} has {sizes[node]} usable core(s) for {members} ranks: not near their GPUs"
            )
            return _spread(cores, ranks), (few,)
    return [(node,) for node in known], ()


def _spread(cores: Sequence[Core], ranks: int) -> list[tuple[int, ...]]:
    sizes = Counter(core.numa_node for core in cores)
    nodes = sorted(sizes)
    if ranks < len(nodes):
        cuts = [rank * len(nodes) // ranks for rank in range(ranks + 1)]
        return [tuple(nodes[low:high]) for low, high in pairwise(cuts)]
    members: Counter[int] = Counter()
    for _ in range(ranks):
        # The node that gives one more rank most cores. There are cores enough, so it has one left.
        members[max(nodes, key=lambda node: Fraction(sizes[node], members[node] + 1))] += 1
    return [(node,) for node in nodes for _ in range(members[node])]


def _pieces(cores: Sequence[Core], count: int) -> list[tuple[Core, ...]]:
    """Consecutive pieces; their sizes differ by one at most."""
    cuts = [number * len(cores) // count for number in range(count + 1)]
    return [tuple(cores[low:high]) for low, high in pairwise(cuts)]


def _placement(cores: Sequence[Core], chosen: Sequence[frozenset[int]], notes: tuple[str, ...]) -> Placement:
    users = {core: sum(not part.isdisjoint(core.cpus) for part in chosen) for core in cores}
    amounts = [
        sum((Fraction(1, users[core]) for core in cores if not part.isdisjoint(core.cpus)), Fraction(0))
        for part in chosen
    ]
    free = _cpus(core for core in cores if not users[core])
    left = (f"CPUs left free: {cpu_list(free)}",) if free else ()
    return Placement(tuple(chosen), max(1, int(min(amounts))), (*notes, *left))


def _cpus(cores: Iterable[Core]) -> frozenset[int]:
    return frozenset(cpu for core in cores for cpu in core.cpus)
