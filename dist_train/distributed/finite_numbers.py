"""One number of all gradients or weights, left on the device: it shows whether any of them is not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dist_train.distributed.parameter_shards import cuts_layers, norm_over_ranks


def gradient_number(parameters: Iterable[nn.Parameter]) -> Tensor:
    """A number that is not finite if any element of the gradients is not; on the device."""
    return _number([parameter.grad for parameter in parameters if parameter.grad is not None])


def weight_number(parameters: Iterable[nn.Parameter]) -> Tensor:
    """A number that is not finite if any element of the trained parameters is not; on the device.

    Those that other stages of a pipeline hold (on the device meta) are not looked at.
    """
    return _number([p.detach() for p in parameters if p.requires_grad and not p.is_meta])


def number_of(tensors: list[Tensor]) -> Tensor:
    """A number that is not finite if any element of plain tensors is not; on the device."""
    return _number(tensors)


def _number(tensors: list[Tensor]) -> Tensor:
    sums = _sums_on_cpu(tensors)
    if sums:
        return sums[0] if len(sums) == 1 else torch.stack(sums).sum()
    dense = [tensor._values() if tensor.is_sparse else tensor for tensor in tensors]
    if any(cuts_layers(one) for one in dense):
        # torch would reduce over one dimension of the mesh after the other, with unlike bits on the ranks.
        return norm_over_ranks(dense)
    # On a GPU many tensors are one kernel. (The largest absolute value cannot overflow, but takes longer.)
    norms = [_of_half(one) if one.dtype == torch.float16 else one for one in dense]
    return on_one_rank(torch.nn.utils.get_total_norm(norms))


def _sums_on_cpu(tensors: list[Tensor]) -> list[Tensor]:
    """Sums of all elements, where all are plain tensors of one dtype; else nothing.

    A sum takes half the time of a norm, and no square overflows in it.
    """
    dtype = tensors[0].dtype if tensors else torch.float32
    if not dtype.is_floating_point:
        return []
    for one in tensors:
        # Others may be sharded over ranks.
        plain = type(one) in _PLAIN and one.is_cpu and one.layout == torch.strided
        if not (plain and one.dtype == dtype):
            return []
    # float16 is summed up as what does not overflow.
    wide = torch.float32 if dtype == torch.float16 else None
    return [one.sum(dtype=wide) if wide else one.sum() for one in _joined(tensors)]


def _joined(tensors: list[Tensor]) -> list[Tensor]:
    """The same elements in fewer tensors: those that lie in memory one after the other are one.

    An operation takes some 4 us, and DDP's gradients are views of a few buckets, without gaps.
    """
    found: list[Tensor] = []
    run: list[Tensor] = []
    end = -1
    for one in sorted(tensors, key=Tensor.data_ptr):
        start, in_rows = one.data_ptr(), one.is_contiguous()
        if start != end or not in_rows:
            found += _as_one(run)
            run = []
        run.append(one)
        end = start + one.numel() * one.element_size() if in_rows else -1
    return found + _as_one(run)


def _as_one(run: list[Tensor]) -> list[Tensor]:
    """One tensor over all of a run of neighbours; the run itself where they are not in one storage."""
    if len(run) < 2:
        return run
    first, size = run[0], sum(one.numel() for one in run)
    begin = first.storage_offset()
    if (begin + size) * first.element_size() > first.untyped_storage().nbytes():
        return run
    return [first.as_strided((size,), (1,), begin)]


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
