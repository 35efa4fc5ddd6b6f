"""Choose the device that a rank computes on, and bind it."""

from __future__ import annotations

import logging
import os

import torch

from dist_train.env import RankInfo
from dist_train.errors import ConfigError
from dist_train.jobs.device_names import nearest_device_name, visible_names, why_no_device
from dist_train.jobs.gpus import inventory

logger = logging.getLogger(__name__)
CHOICES = ("auto", "cpu", "cuda")


def bind(requested: str, info: RankInfo) -> torch.device:
    """Choose this rank's device and make it the current one.

    Args:
        requested: cpu, cuda (AMD's GPUs too: torch calls them so) or auto (cuda where this process sees one).

    Raises:
        ConfigError: for another name, and where this node has fewer GPUs than ranks.
    """
    if requested not in CHOICES:
        hint = why_no_device(requested) or f"use one of {', '.join(CHOICES)}"
        raise ConfigError(f"device {requested!r} is unknown", hint=hint)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "cpu" or (requested == "auto" and count == 0):
        if requested == "auto" and (idle := _other_accelerator()) is not None:
            logger.warning("%s is not supported: this rank computes on the CPU", idle)
        return torch.device("cpu")
    index = _index(count, info)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _other_accelerator() -> str | None:
    """An accelerator of this machine that torch could use and dist-train does not."""
    if torch.xpu.is_available():
        return "the Intel GPU (xpu) here"
    if torch.backends.mps.is_available():
        return "the Apple GPU (mps) here"
    return None


def _index(count: int, info: RankInfo) -> int:
    if count == 1 and info.local_world_size > 1:
        # Slurm may show each rank only its own GPU. The membership check finds two ranks on one GPU.
        return 0
    if count < info.local_world_size:
        raise ConfigError(
            f"{info.local_world_size} ranks on this node need {info.local_world_size} GPUs, "
            f"but {count} {'is' if count == 1 else 'are'} visible",
            cause=None if count else _why_none(),
            hint=f"start {count} ranks per node" if count else "use device cpu, or a node with GPUs",
        )
    return info.local_rank


def _why_none() -> str:
    if torch.version.hip is not None:
        return inventory().reason or f"none is left by {_shown_variables() or 'the driver'}"
    if torch.version.cuda is None:
        others = inventory().reason or ""
        return f"torch {torch.__version__} is built without CUDA" + (
            f" ({others})" if "AMD" in others else ""
        )
    return "the driver shows none to this process (CUDA_VISIBLE_DEVICES?)"


def _shown_variables() -> str:
    """The variables that choose among this process's GPUs, with their values."""
    names = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if torch.version.hip is not None else ()
    return ", ".join(
        f"{name}={os.environ[name]}" for name in (*names, "CUDA_VISIBLE_DEVICES") if name in os.environ
    )


def as_device(device: torch.device | str | int) -> torch.device:
    """Convert a device's name to a torch.device.

    Raises:
        ConfigError: for a name that torch does not know (`cuda: 0`), and for a GPU that is not visible
            to this process.
    """
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"device {device!r}: {str(error).partition(chr(10))[0]}",
            hint=f"did you mean {nearest_device_name(str(device))!r}?",
        ) from None
    if found.type == "cuda":
        _refuse_unseen(found)
    return found


def _refuse_unseen(device: torch.device) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) < count:
        return
    visible = _shown_variables()
    numbers = f"{visible}: they are renumbered from cuda:0"
    raise ConfigError(
        f"device {str(device)!r}: {count} GPU(s) are visible to this process",
        cause=(numbers if visible else None) if count else _why_none(),
        hint=f"use {visible_names(count)}, or run.device" if count else "use 'cpu', or run.device",
    )


def unique_id(device: torch.device) -> str | None:
    """The GPU's UUID, or what else identifies it on this host; None on CPU."""
    if device.type != "cuda":
        return None
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
    if first.startswith("MIG-"):
        return first  # a process sees one slice only; its properties may hold the whole GPU's UUID
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", device.index))


def is_busy(device: torch.device) -> bool:
    """Whether work is pending on a GPU's default stream; does not wait for it, from whichever thread."""
    return not torch.cuda.default_stream(device).query()
