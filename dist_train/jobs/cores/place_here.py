"""The cores of one node's ranks on this machine: what the process may use, divided as `--bind` says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dist_train.errors import ConfigError
from dist_train.jobs.cgroups import cpu_quota
from dist_train.jobs.cores.cpu_topology import (
    Core,
    allowed_cpus,
    machine_cpus,
    numa_node_of_gpu,
    read_cores,
)
from dist_train.jobs.cores.place_ranks import Placement, place_by_cores, place_by_lists, place_by_numa
from dist_train.rundir.cpu_list import Bind


@dataclass(frozen=True)
class NodeShape:
    """One node of a job.

    Args:
        here: how many of the job's nodes are on this machine (simulated ones; else 1).
        index: which of them this is.
        gpu_bus_ids: PCI addresses of the ranks' GPUs, by local rank; empty on CPU.
    """

    ranks: int
    here: int = 1
    index: int = 0
    gpu_bus_ids: tuple[str, ...] = ()


def place_here(bind: Bind, shape: NodeShape, root: Path = Path("/")) -> Placement:
    """Choose the CPUs of this node's ranks; raises ConfigError for what does not fit this machine."""
    allowed = allowed_cpus()
    if allowed is None:
        raise ConfigError(
            f"--bind {bind.mode}: this system cannot bind processes to cores", hint="--bind none"
        )
    cores = read_cores(allowed, root)
    if bind.mode == "lists" and shape.here > 1:
        raise ConfigError(
            f"--bind lists the CPUs of one node's ranks, and {shape.here} simulated nodes share this machine",
            cause="ranks of different nodes would get the same cores",
            hint="--bind cores divides the machine among all of them",
        )
    # Simulated nodes divide the machine together, so that none of them counts a core twice.
    total = shape.ranks * shape.here
    near = [] if shape.here > 1 else _near(shape, cores, root)
    match bind.mode:
        case "cores":
            placed = place_by_cores(cores, total, near)
        case "numa":
            placed = place_by_numa(cores, total, near)
        case _:
            placed = place_by_lists(cores, total, bind.lists, machine_cpus(root))
    if shape.here > 1 and shape.gpu_bus_ids:
        text = "simulated nodes do not know each other's GPUs: not near them"
        placed = replace(placed, notes=(*placed.notes, text))
    own = placed.cpus[shape.index * shape.ranks :][: shape.ranks]
    return _within_quota(replace(placed, cpus=own), total, root)


def _near(shape: NodeShape, cores: Sequence[Core], root: Path) -> list[int | None]:
    """The NUMA node of each rank's GPU; rank i computes on the i-th."""
    found = [numa_node_of_gpu(bus_id, cores, root) for bus_id in shape.gpu_bus_ids[: shape.ranks]]
    return found if not found or len(found) == shape.ranks else [*found, None]


def _within_quota(placed: Placement, ranks: int, root: Path) -> Placement:
    """A container's CPU quota may be less than its cores: more threads than that would be throttled."""
    quota = cpu_quota(root)
    if quota is None or quota.amount >= placed.threads * ranks:
        return placed
    threads = max(1, int(quota.amount / ranks))
    text = f"a CPU quota of {quota.amount:g} cores limits the threads ({quota.file})"
    return replace(placed, threads=threads, notes=(*placed.notes, text))
