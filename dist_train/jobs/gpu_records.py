"""A GPU as drivers describe it, and the list of a machine's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; bytes are None where the driver does not tell them."""

    pid: int
    owner: str
    memory_used: int | None


@dataclass(frozen=True)
class Gpu:
    """One physical GPU, or one MIG slice of it: then `slice` is its number on GPU `index`.

    Args:
        memory_used: bytes; memory_total as well; 0 where the driver does not report it.
        utilisation: per cent of the last sample period; None where the driver does not report it.
    """

    index: int
    uuid: str
    name: str
    memory_used: int
    memory_total: int
    bus_id: str = ""
    utilisation: int | None = None
    processes: tuple[GpuProcess, ...] = ()
    slice: int | None = None
    vendor: Literal["nvidia", "amd"] = "nvidia"

    @property
    def number(self) -> str:
        """`3`; a MIG slice is `3:1`, as nvidia-smi counts."""
        return str(self.index) if self.slice is None else f"{self.index}:{self.slice}"


@dataclass(frozen=True)
class Inventory:
    """The driver's answer; `reason`: why there are no GPUs.

    Args:
        left_out: a text for each GPU that exists and cannot be used: of another job, or lost.
    """

    gpus: tuple[Gpu, ...] = ()
    reason: str | None = None
    left_out: tuple[str, ...] = ()


def owner_of(pid: int) -> str:
    """The user of a process. Drivers count pids as the host does: a container may not see them."""
    import psutil

    try:
        return str(psutil.Process(pid).username())
    except (psutil.Error, KeyError):
        return "?"
