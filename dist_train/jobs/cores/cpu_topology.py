"""The machine's cores, as the kernel describes them in /sys; without a library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_train.rundir.cpu_list import parse_cpu_list

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_PCI = "sys/bus/pci/devices"


@dataclass(frozen=True, order=True)
class Core:
    """One physical core.

    Args:
        numa_node: its number; 0 for all where the kernel knows none.
        cpus: its hardware threads (SMT siblings), those that this process may use.
    """

    numa_node: int
    cpus: tuple[int, ...]


def allowed_cpus() -> frozenset[int] | None:
    """What Slurm, the control group or taskset left this process; None on a system that cannot bind."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else None


def machine_cpus(root: Path = Path("/")) -> frozenset[int]:
    """Every CPU of the machine, allowed or not; empty where the kernel does not tell."""
    return _list(root / _CPUS / "present")


def read_cores(allowed: Iterable[int], root: Path = Path("/")) -> tuple[Core, ...]:
    """The physical cores of these CPUs, NUMA node by NUMA node; `root` is where sys is (a test's own)."""
    left = set(allowed)
    nodes = _numa_nodes(root)
    cores: list[Core] = []
    for cpu in sorted(left):
        if cpu not in left:
            continue  # a sibling of an earlier one
        siblings = (_siblings(cpu, root) | {cpu}) & left
        left -= siblings
        cores.append(Core(nodes.get(cpu, 0), tuple(sorted(siblings))))
    return tuple(sorted(cores))


def numa_node_of_gpu(bus_id: str, cores: Sequence[Core], root: Path = Path("/")) -> int | None:
    """The NUMA node next to a PCI device, one of those of `cores`; None where the kernel does not know it.

    Args:
        bus_id: as drivers write it, with a domain of four or eight digits: `00000000:0F:00.0`.
    """
    folder = root / _PCI / _sysfs_name(bus_id)
    try:
        node = int((folder / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    if node < 0:  # virtual machines and boards with one node
        return None
    if any(core.numa_node == node for core in cores):
        return node
    # The device's own node has no CPU that may be used: a node of memory alone, or the cpuset leaves it out.
    near = _list(folder / "local_cpulist")
    return next((core.numa_node for core in cores if near.intersection(core.cpus)), None)


def _sysfs_name(bus_id: str) -> str:
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}" if domain and rest.count(":") == 1 else bus_id.lower()


def _siblings(cpu: int, root: Path) -> frozenset[int]:
    folder = root / _CPUS / f"cpu{cpu}" / "topology"
    return _list(folder / "core_cpus_list") or _list(folder / "thread_siblings_list")


def _numa_nodes(root: Path) -> dict[int, int]:
    """CPU -> NUMA node; nodes without a CPU (memory alone) do not count."""
    found: dict[int, int] = {}
    for folder in sorted((root / _NODES).glob("node[0-9]*")):
        for cpu in _list(folder / "cpulist"):
            found[cpu] = int(folder.name.removeprefix("node"))
    return found


def _list(path: Path) -> frozenset[int]:
    try:
        return parse_cpu_list(path.read_text().strip())
    except (OSError, ValueError):
        return frozenset()
