"""The bytes of many tensors at once: small ones copied into one block, large ones where they are."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dist_train.checkpoint.format.tensor_bytes import host, view_bytes

# A view of a tensor costs as much time as the copy of this many bytes.
SMALL_BYTES = 16 << 10
# Whose values torch copies into one flat tensor as they are.
_PACKED = frozenset(
    (
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    )
)


def byte_views(tensors: Mapping[str, torch.Tensor]) -> dict[str, memoryview]:
    """Return a view of each tensor's bytes; a block of small ones lives as long as any view of it.

    Args:
        tensors: of any kind and device; those that are not `host` tensors are copied.
    """
    views: dict[str, memoryview] = {}
    for names, members in small_groups(tensors):
        block, start = view_bytes(_flat(members)), 0
        for name, member in zip(names, members, strict=True):
            end = start + member.numel() * member.element_size()
            views[name] = block[start:end]
            start = end
    for name, tensor in tensors.items():
        if name not in views:
            views[name] = view_bytes(host(tensor))
    return views


def small_groups(tensors: Mapping[str, torch.Tensor]) -> list[tuple[list[str], list[torch.Tensor]]]:
    """Return the names and tensors of the small ones in host memory, those of one dtype together."""
    groups: dict[torch.dtype, tuple[list[str], list[torch.Tensor]]] = {}
    for name, tensor in tensors.items():
        dtype = tensor.dtype
        if dtype not in _PACKED or tensor.numel() * dtype.itemsize > SMALL_BYTES or not tensor.is_cpu:
            continue
        names, members = groups.setdefault(dtype, ([], []))
        names.append(name)
        members.append(tensor)
    return [group for group in groups.values() if len(group[0]) > 1]


def _flat(members: list[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        flat: torch.Tensor = torch._C._nn.flatten_dense_tensors([member.resolve_neg() for member in members])
    return flat


def all_finite(members: list[torch.Tensor]) -> bool:
    """Whether the sum of all values is finite; then each value is."""
    return bool(torch.isfinite(_flat(members).sum()))
