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
    if type(dataset) is Subset:
        indices = dataset.indices
        return batch_of_rows(dataset.dataset, [indices[place] for place in ids])
    if type(dataset) is not TensorDataset or not all(map(_has_plain_rows, dataset.tensors)):
        return None
    # A program may have given torch another way to collate tensors.
    if default_collate_fn_map.get(Tensor) is not collate_tensor_fn or tuple in default_collate_fn_map:
        return None
    rows = torch.from_numpy(np.array(ids))
    if rows.dtype != torch.int64 or min(ids) < 0:
        return None
    return [tensor.index_select(0, rows) for tensor in dataset.tensors]


def _has_plain_rows(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dim() > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )
