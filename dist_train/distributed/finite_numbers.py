"""One number of all gradients or weights, left on the device: it shows whether any of them is not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def gradient_number(parameters: Iterable[nn.Parameter]) -> Tensor:
    """A number that is not finite if any element of the gradients is not; on the device."""
    return _number([parameter.grad for parameter in parameters if parameter.grad is not None])


def weight_number(parameters: Iterable[nn.Parameter]) -> Tensor:
    """A number that is not finite if any element of the trained parameters is not; on the device."""
    return _number([parameter.detach() for parameter in parameters if parameter.requires_grad])


def _number(tensors: Iterable[Tensor]) -> Tensor:
    dense = [tensor._values() if tensor.is_sparse else tensor for tensor in tensors]
    if _are_alike_on_cpu(dense):
        # Half the time of the norm, and no square that overflows. float16 does, from 65520 on.
        wide = torch.float32 if dense[0].dtype == torch.float16 else None
        return torch.stack([tensor.sum(dtype=wide) for tensor in dense]).sum()
    # On a GPU many tensors are one kernel. (The largest absolute value cannot overflow, but takes longer.)
    norms = [_of_half(one) if one.dtype == torch.float16 else one for one in dense]
    return on_one_rank(torch.nn.utils.get_total_norm(norms))


def _are_alike_on_cpu(tensors: list[Tensor]) -> bool:
    if not tensors:
        return False
    dtype = tensors[0].dtype
    return dtype.is_floating_point and all(
        type(one) in _PLAIN and one.dtype == dtype and one.device.type == "cpu" for one in tensors
    )


# Others may be sharded over ranks.
_PLAIN = (Tensor, nn.Parameter)


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
