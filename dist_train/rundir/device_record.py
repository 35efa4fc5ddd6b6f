"""attempts/<k>/devices.json: which GPU each rank computes on; rank 0 writes it if the ranks have GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dist_train.rundir.directory import RunDir
from dist_train.rundir.records import read_json, write_json_atomic


@dataclass(frozen=True)
class RankDevice:
    """rank -> visible index -> physical index -> UUID; None where the driver does not give it.

    Args:
        visible_index: the number inside the process: 0 is the first of its CUDA_VISIBLE_DEVICES.
        physical_index: the number on the machine, as nvidia-smi counts; `1:0` for a MIG slice.
    """

    rank: int
    node_rank: int
    host: str
    visible_index: int
    physical_index: str | None
    uuid: str
    name: str
    bus_id: str | None = None

    def __str__(self) -> str:
        physical = "?" if self.physical_index is None else self.physical_index
        place = f"cuda:{self.visible_index} = GPU {physical}"
        return f"rank {self.rank} on {self.host}: {place}, {self.uuid}, {self.name}"


def write_devices(run: RunDir, attempt: int, devices: Sequence[RankDevice]) -> None:
    """Write the record atomically."""
    record = {"attempt": attempt, "ranks": [asdict(device) for device in devices]}
    write_json_atomic(run.attempt_devices(attempt), record)


def read_devices(run: RunDir, attempt: int) -> tuple[RankDevice, ...]:
    """The ranks' GPUs in rank order; empty on CPU, and before all ranks have met."""
    record = read_json(run.attempt_devices(attempt)) or {}
    return tuple(_device(entry) for entry in record.get("ranks", []))


def _device(entry: dict[str, Any]) -> RankDevice:
    """Read one entry; unknown keys of later versions are ignored."""
    return RankDevice(**{name: entry[name] for name in RankDevice.__dataclass_fields__ if name in entry})
