"""torch's nn.DataParallel with parts of chosen size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dist_train.distributed.nested import map_tensors
from dist_train.distributed.transfer import to_device
from dist_train.errors import ConfigError
from dist_train.strategies.chunks import chunk_sizes


class BalancedDataParallel(nn.DataParallel[nn.Module]):
    """A copy of the module on every device in each forward pass, each with its part of the batch.

    Args:
        module: its parameters lie on the first device.
        devices: at least two.
        output_device: where outputs are put together; None: the first device.
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
        """Cut every tensor of the arguments along its first dimension, a part for each device."""
        whole = (inputs, kwargs or {})
        self._sizes = chunk_sizes(_batch_size(whole), len(self._devices), self._first)
        parts, start = [], 0
        for size, device in zip(self._sizes, self._devices, strict=False):
            parts.append(to_device(_cut(whole, start, size), device))
            start += size
        return tuple(part[0] for part in parts), tuple(part[1] for part in parts)

    def gather(self, outputs: Any, output_device: int | torch.device) -> Any:
        """Put the outputs together in the order of the samples."""
        if len(set(self._sizes)) > 1:
            _refuse_means(outputs, self._sizes)
        return super().gather(outputs, output_device)


def _batch_size(arguments: Any) -> int:
    sizes: list[int] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim():
            sizes.append(tensor.size(0))
        return tensor

    map_tensors(arguments, note)
    if len(set(sizes)) > 1:
        raise ConfigError(
            f"strategy dp: the model's inputs have {', '.join(map(str, dict.fromkeys(sizes)))} rows",
            cause="it cuts the first dimension of every input, which must be the samples",
            mend="give what is not per sample to the model as a buffer, or use strategy ddp",
        )
    return sizes[0] if sizes else 0


def _cut(arguments: Any, start: int, size: int) -> Any:
    return map_tensors(arguments, lambda tensor: tensor.narrow(0, start, size) if tensor.dim() else tensor)


def _refuse_means(outputs: Sequence[Any], sizes: tuple[int, ...]) -> None:
    """A loss computed inside the model is a mean over its part: parts of unlike size weigh alike."""

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0:
            raise ConfigError(
                f"strategy dp: the model returns one number per device, for {sizes} samples",
                cause="their mean is not the mean over the samples",
                mend="return a value per sample and take the mean outside of the model, or use strategy ddp",
            )
        return tensor

    map_tensors(outputs[0], check)
