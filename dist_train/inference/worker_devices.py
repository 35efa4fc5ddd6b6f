"""Choose the devices of a Predictor: one worker for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_train.distributed.devices import as_device
from dist_train.errors import ConfigError

Device = torch.device | str | int


def worker_devices(devices: Sequence[Device] | None, processes: int | None) -> list[str]:
    """Return the device of every worker.

    Args:
        devices: one worker each; the same one may be named more than once.
        processes: the number of CPU processes instead. Neither: every visible GPU, else one CPU process.

    Raises:
        ConfigError: both are given, no device, or one that does not exist.
    """
    if processes is not None:
        if devices is not None:
            raise ConfigError(
                f"devices={list(devices)} and processes={processes} both give the number of workers",
                hint='give one of them; several on the CPU are processes=2 or devices=["cpu", "cpu"]',
            )
        if processes < 1:
            raise ConfigError(f"processes={processes}: at least one is needed")
        return ["cpu"] * processes
    if devices is None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [f"cuda:{index}" for index in range(count)] or ["cpu"]
    if isinstance(devices, (str, int, torch.device)) or not devices:
        raise ConfigError(f"devices={devices!r} is no list of devices", hint='for one: devices=["cpu"]')
    return [_device_name(as_device(device)) for device in devices]


def _device_name(device: torch.device) -> str:
    return f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)
