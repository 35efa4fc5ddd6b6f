"""Record which GPU each rank computes on: gathered from all ranks, written by rank 0."""

from __future__ import annotations

import logging
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dist_train.distributed import devices
from dist_train.distributed.control_group import Control
from dist_train.env import RankInfo
from dist_train.jobs.gpus import Gpu, physical_gpus
from dist_train.rundir.device_record import RankDevice, write_devices
from dist_train.rundir.directory import RunDir

logger = logging.getLogger(__name__)


def record_devices(
    control: Control, info: RankInfo, device: torch.device, run_dir: Path | None, attempt: int
) -> None:
    """Collective. Rank 0 writes attempts/<k>/devices.json if the ranks compute on GPUs (the membership
    check has made sure that all or none do)."""
    if not _is_recorded(device):
        return
    records: list[Any] = control.all_gather(_own_record(info, device))
    if not control.is_main or run_dir is None:
        return
    try:
        write_devices(RunDir(run_dir), attempt, [RankDevice(**entry) for entry in records])
    except OSError as error:
        # Training goes on without this record.
        logger.warning("which rank has which GPU could not be recorded: %s", error)


def _is_recorded(device: torch.device) -> bool:
    return device.type == "cuda"


def _own_record(info: RankInfo, device: torch.device) -> dict[str, Any]:
    uuid = devices.unique_id(device) or "?"
    gpu = _physical(uuid)
    return asdict(
        RankDevice(
            rank=info.rank,
            node_rank=info.node_rank,
            host=socket.gethostname(),
            visible_index=device.index or 0,
            physical_index=None if gpu is None else gpu.number,
            uuid=uuid if gpu is None else gpu.uuid,
            name=torch.cuda.get_device_properties(device).name,
            bus_id=None if gpu is None else gpu.bus_id,
        )
    )


def _physical(uuid: str) -> Gpu | None:
    """The GPU as the driver lists it: torch gives the UUID without its `GPU-` or `MIG-`."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    names = {bare, _of_hip(bare)}
    return next((gpu for gpu in physical_gpus() if gpu.uuid.partition("-")[2] in names), None)


def _of_hip(bare: str) -> str:
    """HIP fills the UUID's 16 bytes with the 16 characters of the GPU's unique id; empty for another's."""
    try:
        return bytes.fromhex(bare.replace("-", "")).decode("ascii")
    except ValueError:
        return ""
