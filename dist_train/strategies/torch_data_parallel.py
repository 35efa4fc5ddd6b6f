"""nn.DataParallel with parts of chosen size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dist_train.distributed.pytree import map_tensors
from dist_train.distributed.transfer import to_device
from dist_train.errors import ConfigError


class BalancedDataParallel(nn.DataParallel[nn.Module]):
    """nn.DataParallel whose batch is split evenly, or with fewer samples for the first device.

    Args:
        module: its parameters are on the first device.
        devices: at least two.
        output_device: where outputs are gathered; None: the first device.
        first_device_batch: samples of the first device; None: as many as the others.
    """

    def __init__(
        self,
        module: nn.Module,
        devices: Sequence[torch.device],
        output_device: torch.device | None = None,
        first_device_batch: int | None = None,
    ) -> None:
        super().__init__(module, device_ids=list(devices), output_device=output_device or devices[0])
        self._devices = tuple(devices)
        self._first = first_device_batch
        self._sizes: tuple[int, ...] = ()

    def scatter(
        self, inputs: tuple[Any, ...], kwargs: dict[str, Any] | None, device_ids: Sequence[Any]
    ) -> tuple[tuple[Any, ...], tuple[dict[str, Any], ...]]:
        """Split every tensor of the arguments along its first dimension, a part for each device."""
        whole = (inputs, kwargs or {})
        self._sizes = chunk_sizes(_batch_size(whole), len(self._devices), self._first)
        parts, start = [], 0
        for size, device in zip(self._sizes, self._devices, strict=False):
            parts.append(to_device(_part(whole, start, size), device))
            start += size
        return tuple(part[0] for part in parts), tuple(part[1] for part in parts)

    def gather(self, outputs: Any, output_device: int | torch.device) -> Any:
        """Concatenate the outputs in the order of the samples."""
        if len(set(self._sizes)) > 1:
            _refuse_means(outputs, self._sizes)
        return super().gather(outputs, output_device)


def chunk_sizes(batch: int, devices: int, first: int | None = None) -> tuple[int, ...]:
    """Samples for each device, the first device first; fewer numbers than devices if samples are few.

    The first device never gets more than another: it also holds the outputs, the loss and the
    optimizer. The others' parts differ by one at most. torch's own split (32 + 32 + 32 + 4 for a
    hundred samples on four devices) guarantees neither.

    Args:
        batch: samples.
        devices: at least 1.
        first: samples of the first device; None, or more than an even part: as many as the others.
    """
    used = min(devices, batch)
    if used <= 1:
        return (batch,)
    even = batch // used
    head = even if first is None else min(first, even)
    rest, extra = divmod(batch - head, used - 1)
    return (head, *(rest + (place < extra) for place in range(used - 1)))


def _batch_size(arguments: Any) -> int:
    sizes: list[int] = []

    def collect(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim():
            sizes.append(tensor.size(0))
        return tensor

    map_tensors(arguments, collect)
    if len(set(sizes)) > 1:
        raise ConfigError(
            f"strategy dp: the model's inputs have {', '.join(map(str, dict.fromkeys(sizes)))} rows",
            cause="it cuts the first dimension of every input, which must be the samples",
            hint="give what is not per sample to the model as a buffer, or use strategy ddp",
        )
    return sizes[0] if sizes else 0


def _part(arguments: Any, start: int, size: int) -> Any:
    return map_tensors(arguments, lambda tensor: tensor.narrow(0, start, size) if tensor.dim() else tensor)


def _refuse_means(outputs: Sequence[Any], sizes: tuple[int, ...]) -> None:
    """Refuse a loss computed inside the model: it is a mean over its part, and the parts differ in size."""

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0:
            raise ConfigError(
                f"strategy dp: the model returns one number per device, for {sizes} samples",
                cause="their mean is not the mean over the samples",
                hint="return a value per sample and take the mean outside of the model, or use strategy ddp",
            )
        return tensor

    map_tensors(outputs[0], check)
