"""The environment that gives a process certain GPUs, in this order, before CUDA or HIP starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal


def environ_of(ids: Sequence[str], vendor: Literal["nvidia", "amd"]) -> dict[str, str]:
    """Return the variables.

    Args:
        ids: as the driver has them (Gpu.uuid): the meaning of a number depends on other variables.
    """
    chosen = ",".join(ids)
    if vendor == "nvidia":
        return {"CUDA_VISIBLE_DEVICES": chosen, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    # HIP counts what ROCR_VISIBLE_DEVICES has left. Its own variable is set as well, so that an inherited
    # one, or CUDA's in its place, does not choose among them once more.
    return {"ROCR_VISIBLE_DEVICES": chosen, "HIP_VISIBLE_DEVICES": ",".join(map(str, range(len(ids))))}
