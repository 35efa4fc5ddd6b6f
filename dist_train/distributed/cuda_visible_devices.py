"""Warn where a script has changed CUDA_VISIBLE_DEVICES (or HIP's), and with it the GPUs that it was given."""

from __future__ import annotations

import logging
import os

import psutil
import torch

logger = logging.getLogger(__name__)
_CUDA = ("CUDA_VISIBLE_DEVICES",)
_HIP = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", *_CUDA)


def warn_if_changed(alone: bool) -> None:
    """Log a warning for each variable that is no longer what this process was started with.

    Args:
        alone: the job has one process and no launcher chose its GPU: it may choose one itself before
            CUDA starts.
    """
    started = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    if alone and not started:
        return
    for name in _CUDA if torch.version.hip is None else _HIP:
        warning = change_warning(value_at_start(name), os.environ.get(name), started, name)
        if warning is not None:
            logger.warning(warning)


def value_at_start(name: str = _CUDA[0]) -> str | None:
    """The value that this process was started with, as the kernel keeps it; else the value now."""
    try:
        return psutil.Process().environ().get(name)
    except (psutil.Error, OSError):
        return os.environ.get(name)


def change_warning(before: str | None, now: str | None, started: bool, name: str = _CUDA[0]) -> str | None:
    """The warning about a changed variable; None if it is unchanged.

    Args:
        started: whether CUDA has read the variable already: a change after that does nothing.
    """
    if before == now:
        return None
    change = f"{name} is {_shown(now)}, and was {_shown(before)} when this process started"
    if started:
        effect = "CUDA has started already: a change after that does nothing, cuda:0 is still the old one"
    else:
        effect = "the GPUs are not those that the launcher gave this rank, and all ranks may share one"
    return f"{change}; {effect}. Set it before the command, or use --gpus 0,3, and remove the line"


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)
