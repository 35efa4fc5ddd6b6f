"""Memory of this rank: now, for each record, and the peak of each GPU, in one line at the end."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

_GIB = 1 << 30
# A smaller ratio is normal: the first device holds the outputs and the optimizer's state, too.
_UNEVEN = 1.3


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one GPU: the peak of this process, and all that the card has."""

    index: int
    peak: int
    total: int


def used_bytes(device: torch.device) -> int:
    """CUDA: what torch holds on the device; CPU: the process's resident memory; 0 where it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.memory_reserved(device))
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def device_memory(device: torch.device) -> list[DeviceMemory]:
    """Each GPU that this process has used; nothing on a CPU."""
    if device.type != "cuda":
        return []
    found = [
        DeviceMemory(
            index, torch.cuda.max_memory_reserved(index), torch.cuda.get_device_properties(index).total_memory
        )
        for index in range(torch.cuda.device_count())
    ]
    return [memory for memory in found if memory.peak]


def memory_line(used: Sequence[DeviceMemory], strategy: str) -> str | None:
    """`peak memory of rank 0: cuda:0 30.1 of 79.1 GiB, cuda:1 12.0 of 79.1 GiB`; None without a GPU."""
    if not used:
        return None
    figures = ", ".join(
        f"cuda:{memory.index} {memory.peak / _GIB:.1f} of {memory.total / _GIB:.1f} GiB" for memory in used
    )
    line = f"peak memory of rank 0: {figures}"
    first, others = used[0], used[1:]
    if strategy == "dp" and others and first.peak > _UNEVEN * max(memory.peak for memory in others):
        line += "; strategy.first_device_batch gives the first one fewer samples"
    return line
