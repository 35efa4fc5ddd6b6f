"""Weights of a narrower precision than the model's: widened, since that changes no value."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from dist_train.checkpoint.memory import dtype_name

# To which types every value goes as it is.
_WIDER = {
    torch.float16: (torch.float32, torch.float64),
    torch.bfloat16: (torch.float32, torch.float64),
    torch.float32: (torch.float64,),
}


def widen(
    given: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], str | None]:
    """Bring tensors to the model's precision where that is exact; others stay as they are.

    Returns:
        The tensors, and what was done in words; None where nothing was.
    """
    wanted = {
        name: expected[name].dtype
        for name, tensor in given.items()
        if name in expected and expected[name].dtype in _WIDER.get(tensor.dtype, ())
    }
    kinds = sorted({f"{dtype_name(given[name].dtype)} to {dtype_name(wanted[name])}" for name in wanted})
    told = f"widened {' and '.join(kinds)} in {len(wanted)} tensors (exact)" if wanted else None
    return {name: tensor.to(wanted.get(name, tensor.dtype)) for name, tensor in given.items()}, told
