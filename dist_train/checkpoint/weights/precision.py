"""Widen weights of a narrower precision than the model's: that changes no value."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.state.module_state import Stored
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.checkpoint.weights.weight_tensors import WidenedReader

# The types that hold every value of a narrower one.
_WIDER = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


def widen(
    given: Mapping[str, Stored], expected: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Stored], str | None]:
    """Bring tensors to the model's precision where that is exact; others stay as they are.

    Returns:
        The tensors, and a description for the log; None where nothing was widened.
    """
    wanted = {
        name: expected[name].dtype
        for name, tensor in given.items()
        if name in expected and expected[name].dtype in _WIDER.get(tensor.dtype, ())
    }
    kinds = sorted({f"{dtype_name(given[name].dtype)} to {dtype_name(wanted[name])}" for name in wanted})
    description = f"widened {' and '.join(kinds)} in {len(wanted)} tensors (exact)" if wanted else None
    return {name: _as(tensor, wanted.get(name, tensor.dtype)) for name, tensor in given.items()}, description


def _as(tensor: Stored, dtype: torch.dtype) -> Stored:
    if isinstance(tensor, torch.Tensor):
        return tensor.to(dtype)
    return tensor if tensor.dtype == dtype else StoredTensor(WidenedReader(tensor, dtype), tensor.key)
