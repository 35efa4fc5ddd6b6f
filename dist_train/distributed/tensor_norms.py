"""Norms of gradients and weights, left on the device: they show whether any of them is not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the gradients, on the device; not finite if any of them is not."""
    return _norm([parameter.grad for parameter in parameters if parameter.grad is not None])


def weight_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of the trained parameters, on the device."""
    return _norm([parameter.detach() for parameter in parameters if parameter.requires_grad])


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    dense = [tensor._values() if tensor.is_sparse else tensor for tensor in tensors]
    # (The largest absolute value cannot overflow, but takes ten times as long on a CPU.)
    wide = [_of_half(one) if one.dtype == torch.float16 else one for one in dense]
    return on_one_rank(torch.nn.utils.get_total_norm(wide))


def _of_half(tensor: Tensor) -> Tensor:
    """Its norm, as float32: as float16 that of many small values is infinite."""
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float32)
    return norm


def on_one_rank(norm: Tensor | float) -> Tensor:
    """The norm as a plain tensor; of a sharded one the whole."""
    if not isinstance(norm, Tensor):
        return torch.as_tensor(norm)
    whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole
