"""Which devices a Predictor computes on: one worker for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_train.distributed.devices import as_device
from dist_train.errors import ConfigError

Device = torch.device | str | int


def place(devices: Sequence[Device] | None, processes: int | None) -> list[str]:
    """The device of every worker.

    Args:
        devices: one worker each; the same one may be named more than once.
        processes: so many CPU processes instead. Neither: every visible GPU, else one CPU process.

    Raises:
        ConfigError: both, none, or a device that is not there.
    """
    if processes is not None:
        if devices is not None:
            raise ConfigError(
                f"devices={list(devices)} and processes={processes} both say how many workers",
                mend='give one of them; several on the CPU are processes=2 or devices=["cpu", "cpu"]',
            )
        if processes < 1:
            raise ConfigError(f"processes={processes}: at least one is needed")
        return ["cpu"] * processes
    if devices is None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [f"cuda:{index}" for index in range(count)] or ["cpu"]
    if isinstance(devices, (str, int, torch.device)) or not devices:
        raise ConfigError(f"devices={devices!r} is no list of devices", mend='for one: devices=["cpu"]')
    return [_word(as_device(device)) for device in devices]


def _word(device: torch.device) -> str:
    return f"cuda:{device.index or 0}" if device.type == "cuda" else str(device)
