"""Keep a stage's own tensors. Those of other stages go to the device meta: a name, a shape and no memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def hold_own_tensors(
    model: nn.Module, stages_of: Mapping[str, tuple[int, ...]], stage: int, device: torch.device
) -> None:
    """Drop the values of other stages' tensors in place, and move this stage's to its device.

    Names, ties and state_dict() stay as they are; an optimizer makes no state for a parameter without a
    gradient. Buffers outside the state_dict are not dropped: nothing would restore them.

    Args:
        model: plain.
        stages_of: name of each parameter and buffer -> the stages that use it.
        stage: this rank's.
        device: of this rank.
    """
    replaced: dict[int, Tensor] = {}

    def own(name: str, tensor: Tensor) -> Tensor:
        if id(tensor) not in replaced:
            if stage in stages_of[name]:
                tensor.data = tensor.data.to(device)
                replaced[id(tensor)] = tensor
            else:
                replaced[id(tensor)] = _without_values(tensor)
        return replaced[id(tensor)]

    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        slots: list[tuple[dict[str, Any], str, Tensor]] = [
            (held, name, tensor)
            for held in (module._parameters, module._buffers)
            for name, tensor in held.items()
            if tensor is not None
        ]
        for held, name, tensor in slots:
            if held is module._buffers and name in module._non_persistent_buffers_set:
                tensor.data = tensor.data.to(device)
            else:
                held[name] = own(f"{prefix}{name}", tensor)


def _without_values(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty
