"""The CPU cores and the memory that this process may really use, and what limits them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dist_train.jobs.cgroups import Limit, cpu_quota, memory_limit

_LARGE_PAGES = "sys/kernel/mm/transparent_hugepage/enabled"
_PROC_MEMINFO = "proc/meminfo"


@dataclass(frozen=True)
class Usable:
    """An amount, what the machine has, and what makes the two differ.

    Args:
        amount: cores, or bytes.
        machine: of the whole machine, in the same unit.
        reason: in words.
    """

    amount: int
    machine: int
    reason: str


@dataclass(frozen=True)
class Machine:
    """What a process here may use; a container and a batch system give less than the machine has."""

    cores: Usable
    memory: Usable
    shared_memory: int | None  # bytes of /dev/shm, where loader workers hand over their batches


def look(root: Path = Path("/")) -> Machine:
    """Ask the kernel. `root` is where proc and sys are found (a test's own)."""
    return Machine(usable_cores(root), usable_memory(root), shared_memory_bytes())


def usable_cores(root: Path = Path("/")) -> Usable:
    """The fewer of affinity (taskset, Slurm, Docker's --cpuset-cpus) and the cgroups' CPU quota."""
    machine = os.cpu_count() or 1
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else machine
    quota = cpu_quota(root)
    if quota is not None and quota.amount < bound:
        return Usable(
            max(1, int(quota.amount)), machine, f"CPU quota of {quota.amount:g} cores ({quota.file})"
        )
    if bound < machine:
        return Usable(bound, machine, f"this process is bound to {bound} of {machine} cores (affinity)")
    return Usable(machine, machine, "all cores of the machine")


def usable_memory(root: Path = Path("/")) -> Usable:
    """The smaller of the machine's memory and the cgroups' limit, in bytes."""
    machine = _total_memory(root)
    limit: Limit | None = memory_limit(root)
    if limit is not None and (limit.amount < machine or not machine):
        return Usable(int(limit.amount), machine, f"memory limit of the control group ({limit.file})")
    return Usable(machine, machine, "all memory of the machine")


def shared_memory_bytes(path: str = "/dev/shm") -> int | None:
    """Size of /dev/shm; None where there is none."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return facts.f_frsize * facts.f_blocks


def has_large_pages(root: Path = Path("/")) -> bool:
    """Whether this system gives large pages of memory, always or to who asks for them."""
    try:
        return "[never]" not in (root / _LARGE_PAGES).read_text(encoding="ascii")
    except OSError:
        return False


def _total_memory(root: Path) -> int:
    try:
        for line in (root / _PROC_MEMINFO).read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0
