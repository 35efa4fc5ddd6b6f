"""Refuse, at the first step, a BatchNorm that the smallest micro-batch of the epoch would make fail.

torch's BatchNorm raises where a channel has one value. With a share of the batch on each rank that may be
the last step of an epoch only, hours after the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dist_train.errors import ConfigError


@dataclass
class ReadEpoch:
    """What is being read: sizes of micro-batches, in samples.

    Args:
        smallest: of any rank, in the whole epoch.
        smallest_step: samples of the whole job in its smallest step.
        batch_size: samples of the whole job in a whole step.
        parts: ranks x micro-batches of a step.
        current: samples in this rank's present micro-batch, a stand-in included.
    """

    smallest: int
    smallest_step: int
    batch_size: int
    parts: int
    current: int = 1


_open: list[ReadEpoch] = []


@contextmanager
def reading(epoch: ReadEpoch) -> Iterator[ReadEpoch]:
    """What `watch_batch_norm` compares with, until the end of the block."""
    _open.append(epoch)
    try:
        yield epoch
    finally:
        _open[:] = [one for one in _open if one is not epoch]


def watch_batch_norm(model: nn.Module) -> None:
    """Check each BatchNorm of the model in its first training step; SyncBatchNorm needs no check."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
            check = _FirstForward(name or type(module).__name__)
            check.handle = module.register_forward_pre_hook(check)


class _FirstForward:
    """A forward pre-hook that removes itself once it has compared."""

    handle: Any = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, module: nn.Module, args: Any) -> None:
        # A compiled model keeps the hook, without effect: it must not break the graph.
        if torch.compiler.is_compiling() or not module.training or not _open or not args:
            return
        epoch, shape = _open[-1], args[0].shape
        values = args[0].numel() // max(1, shape[1])
        self.handle.remove()
        # Fewer values than samples: the model chose some of them, and may choose otherwise in another step.
        if values == epoch.current and epoch.smallest == 1:
            raise _one_value(self.name, epoch)


def _one_value(name: str, epoch: ReadEpoch) -> ConfigError:
    if epoch.batch_size // epoch.parts < 2:
        hint = f"a batch_size of at least {2 * epoch.parts} (2 x ranks x micro-batches), or nn.GroupNorm"
    else:
        hint = (
            "drop_last=True of dt.loader (data.drop_last of a config) leaves that step out; or nn.GroupNorm"
        )
    return ConfigError(
        f"BatchNorm {name!r} will get a micro-batch of one sample: the smallest step of an epoch has "
        f"{epoch.smallest_step} samples for {epoch.parts} micro-batches",
        cause="BatchNorm cannot normalise one value per channel, and torch raises there",
        hint=hint,
    )
