"""A batch of a TensorDataset by one selection of rows per tensor, in place of a stack of single rows.

The values, types and strides are those that torch's `default_collate` makes of the samples one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map


def batch_of_rows(dataset: Any, ids: Sequence[int]) -> list[Tensor] | None:
    """What torch's default collate gives for these samples; None where they must be read one by one.

    Only for `torch.utils.data.TensorDataset` itself (a subclass may change its items) and Subset of it, with
    plain contiguous tensors in CPU memory.
    """
    if type(dataset) is Subset and _is_torchs_own(Subset):
        indices = dataset.indices
        return batch_of_rows(dataset.dataset, [indices[place] for place in ids])
    if type(dataset) is not TensorDataset or not _is_torchs_own(TensorDataset):
        return None
    rows = _as_rows(ids)
    if rows is None or not _collates_as_torch() or not all(map(_has_plain_rows, dataset.tensors)):
        return None
    try:
        return [tensor.index_select(0, rows) for tensor in dataset.tensors]
    except NotImplementedError:  # a dtype of which torch can stack samples and not select them: uint16
        return None


def _as_rows(ids: Sequence[Any]) -> Tensor | None:
    """The ids as an index; None where they are not plain numbers from 0: a Subset's may be groups of rows."""
    try:
        rows = np.array(ids)
    except (ValueError, RuntimeError, TypeError):  # of unlike lengths, tensors
        return None
    if rows.dtype != np.int64 or rows.ndim != 1 or rows.size == 0 or rows.min() < 0:
        return None
    return torch.from_numpy(rows)


def _collates_as_torch() -> bool:
    """Whether the program has given torch no other way to collate tensors, or the tuple of a sample."""
    if default_collate_fn_map.get(Tensor) is not collate_tensor_fn:
        return False
    return not any(issubclass(tuple, each) for each in default_collate_fn_map)


_READ = {kind: (kind.__getitem__, getattr(kind, "__getitems__", None)) for kind in (TensorDataset, Subset)}


def _is_torchs_own(kind: type[TensorDataset] | type[Subset[Any]]) -> bool:
    """Whether the program has not replaced how torch's class reads its samples."""
    return (kind.__getitem__, getattr(kind, "__getitems__", None)) == _READ[kind]


def _has_plain_rows(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dim() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )
