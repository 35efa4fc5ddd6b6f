"""A script that sets CUDA_VISIBLE_DEVICES itself: what that does to the GPUs it was given."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

logger = logging.getLogger(__name__)
_NAME = "CUDA_VISIBLE_DEVICES"


def warn_if_changed(alone: bool) -> None:
    """One warning where the variable is no longer what this process was started with.

    Args:
        alone: nobody gave this process its GPU, and no other rank is beside it: it may choose, in time.
    """
    started = bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
    if alone and not started:
        return
    told = changed_words(value_at_start(), os.environ.get(_NAME), started)
    if told is not None:
        logger.warning(told)


def value_at_start(environ: Path = Path("/proc/self/environ")) -> str | None:
    """What the process was started with, as the kernel keeps it; what it has now where that is not told."""
    try:
        block = environ.read_bytes()
    except OSError:
        return os.environ.get(_NAME)
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name == _NAME.encode():
            return os.fsdecode(value)
    return None


def changed_words(before: str | None, now: str | None, started: bool) -> str | None:
    """The warning, or None.

    Args:
        started: whether CUDA has read the variable already: a change after that does nothing.
    """
    if before == now:
        return None
    change = f"{_NAME} is {_shown(now)}, and was {_shown(before)} when this process started"
    if started:
        effect = "CUDA has started already: a change after that does nothing, cuda:0 is still the old one"
    else:
        effect = "the GPUs are not those that the launcher gave this rank, and all ranks may share one"
    return f"{change}; {effect}. Set it before the command, or use --gpus 0,3, and remove the line"


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)
