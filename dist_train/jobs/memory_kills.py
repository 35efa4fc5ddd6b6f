"""Processes that the kernel killed for memory: the control groups' counts before and after, and the limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dist_train.jobs.cgroups import group_folders
from dist_train.rundir.format_amounts import size

# In version 1 "no limit" is a number near 2^63.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class GroupMemory:
    """What one control group has counted.

    Attributes:
        kills: of its processes by the kernel for memory, whatever limit was reached.
        reached: how often this group's own limit was reached (version 2: with a kill as the answer).
        limit: in bytes; None where this group has none.
        peak: the most that was used, in bytes; None on a kernel that does not keep it.
        limit_file: where the limit is read.
    """

    kills: int
    reached: int
    limit: int | None
    peak: int | None
    limit_file: Path


@dataclass(frozen=True)
class MemoryReading:
    """The counts at one time: of this process's group, then of those above it; and of the whole machine."""

    groups: tuple[GroupMemory, ...]
    host_kills: int | None
    host_memory: int = 0

    @property
    def counts_own_kills(self) -> bool:
        """Whether this process's own group counts them: it is no version 2 root."""
        return bool(self.groups)


@dataclass(frozen=True)
class MemoryKill:
    """Kills between two readings.

    Attributes:
        count: how many.
        limit: that was reached, in bytes; None where it cannot be seen from here.
        peak: of the group with that limit, in bytes.
        limit_file: where it is read.
        is_own: of a process of this group; else of any process of the machine.
        host_memory: of the whole machine, in bytes.
    """

    count: int
    limit: int | None
    peak: int | None
    limit_file: Path | None
    is_own: bool
    host_memory: int = 0

    def __str__(self) -> str:
        if not self.is_own:
            return (
                "perhaps out of memory: the kernel of this host killed a process for memory in that time "
                "(`dmesg` names it)"
            )
        if self.limit is None or self.limit_file is None:
            has = f", which has {size(self.host_memory)}" if self.host_memory else ""
            return f"out of memory: of the host{has}, or at a limit that cannot be seen from here"
        peak = "" if self.peak is None else f", peak {size(self.peak)}"
        whose = limit_owner(self.limit_file.parent)
        return f"out of memory at the limit of {size(self.limit)} of {whose} ({self.limit_file}{peak})"


def read_memory(root: Path = Path("/")) -> MemoryReading:
    """Read the counts; `root` is where proc and sys are found (a test's own)."""
    groups = [
        found
        for version, folder in group_folders("memory", root)
        if (found := _quietly(_READERS[version], folder)) is not None
    ]
    kills = _number_after("oom_kill", root / "proc/vmstat")
    kib = _number_after("MemTotal:", root / "proc/meminfo")
    return MemoryReading(tuple(groups), kills, 0 if kib is None else kib * 1024)


def kills_between(before: MemoryReading, after: MemoryReading) -> MemoryKill | None:
    """Compare two readings; None where nothing was killed for memory.

    The count of the own group is exact: it counts kills for any limit, the host's memory too. Only where
    there is none does the machine's count say anything.
    """
    if before.counts_own_kills and len(before.groups) == len(after.groups):
        count = after.groups[0].kills - before.groups[0].kills
        return _own(count, before.groups, after.groups, after.host_memory) if count > 0 else None
    count = (after.host_kills or 0) - (before.host_kills or 0)
    if before.host_kills is None or count <= 0:
        return None
    return MemoryKill(count, None, None, None, False, after.host_memory)


def _own(
    count: int, before: Sequence[GroupMemory], after: Sequence[GroupMemory], host_memory: int
) -> MemoryKill:
    reached = [
        new
        for old, new in zip(before, after, strict=True)
        if new.reached > old.reached and new.limit is not None
    ]
    # The nearest: version 2 counts in the groups above it too. Version 1 counts also what reclaim has cured.
    found = min(reached, key=lambda group: group.limit or 0, default=None)
    if found is None:
        return MemoryKill(count, None, None, None, True, host_memory)
    return MemoryKill(count, found.limit, found.peak, found.limit_file, True, host_memory)


def twice(limit: int) -> str:
    """Twice a limit in bytes, as --mem takes it: 2G, 1536M."""
    mib = -(-2 * limit // 2**20)
    return f"{mib // 1024}G" if mib % 1024 == 0 else f"{mib}M"


def without_cause(message: str) -> str:
    """A message about SIGKILL without words on its cause: a guess in parentheses, or the limit reached."""
    return re.sub(
        r"(SIGKILL\)?)(?: \([^()]*\)|: (?:perhaps )?out of memory.*)$", r"\1", message, flags=re.DOTALL
    )


def limit_owner(folder: Path) -> str:
    """What a control group belongs to, by its path: a pod, a job of Slurm, a unit of systemd."""
    path = folder.as_posix()
    if found := re.search(r"/job_(\d+)(?:/step_(\w+))?", path):
        return f"Slurm job {found[1]}" + (f", step {found[2]}" if found[2] else "")
    if "kubepods" in path:
        return "its pod"
    if found := re.search(r"/([^/]+\.(?:scope|service|slice))$", path):
        return f"systemd's {found[1]}"
    return "its control group"


def _version_2(folder: Path) -> GroupMemory:
    events = folder / "memory.events"
    kills, reached = _number_after("oom_kill", events), _number_after("oom", events)
    if kills is None:
        raise ValueError(f"{events} has no count")
    limit = folder / "memory.max"
    return GroupMemory(kills, reached or 0, _amount(limit), _amount(folder / "memory.peak"), limit)


def _version_1(folder: Path) -> GroupMemory:
    kills = _number_after("oom_kill", folder / "memory.oom_control")
    if kills is None:
        raise ValueError(f"{folder} has no count")
    limit = folder / "memory.limit_in_bytes"
    amount, reached = _amount(limit), _amount(folder / "memory.failcnt")
    none = amount is None or amount >= _NO_LIMIT
    peak = _amount(folder / "memory.max_usage_in_bytes")
    return GroupMemory(kills, reached or 0, None if none else amount, peak, limit)


_READERS: dict[int, Callable[[Path], GroupMemory]] = {1: _version_1, 2: _version_2}


def _quietly(read: Callable[[Path], GroupMemory], folder: Path) -> GroupMemory | None:
    """The files are not there at version 2's root, or where the controller is off."""
    try:
        return read(folder)
    except (OSError, ValueError):
        return None


def _amount(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _number_after(word: str, path: Path) -> int | None:
    """The number on the line that begins with this word."""
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return None
    return next((int(line[1]) for line in lines if len(line) > 1 and line[0] == word), None)
