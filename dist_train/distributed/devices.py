"""Which device a rank computes on, and binding it."""

from __future__ import annotations

import torch

from dist_train.env import RankInfo
from dist_train.errors import ConfigError

CHOICES = ("auto", "cpu", "cuda")


def bind(requested: str, info: RankInfo) -> torch.device:
    """Choose this rank's device and make it the current one.

    Args:
        requested: cpu, cuda or auto (cuda where this process sees a GPU).

    Raises:
        ConfigError: for another word, and where GPUs are fewer than this node's ranks.
    """
    if requested not in CHOICES:
        raise ConfigError(f"device {requested!r} is unknown", mend=f"use one of {', '.join(CHOICES)}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "cpu" or (requested == "auto" and count == 0):
        return torch.device("cpu")
    index = _index(count, info)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _index(count: int, info: RankInfo) -> int:
    if count == 1 and info.local_world_size > 1:
        # Slurm may show each rank only its own GPU. Two ranks on one GPU are caught in the roll-call.
        return 0
    if count < info.local_world_size:
        raise ConfigError(
            f"{info.local_world_size} ranks on this node need {info.local_world_size} GPUs, "
            f"but {count} {'is' if count == 1 else 'are'} visible",
            cause=None if count else _why_none(),
            mend=f"start {count} ranks per node" if count else "use device cpu, or a node with GPUs",
        )
    return info.local_rank


def _why_none() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "the driver shows none to this process (CUDA_VISIBLE_DEVICES?)"


def unique_id(device: torch.device) -> str | None:
    """What tells this GPU from all others of the host; None on CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", device.index))
