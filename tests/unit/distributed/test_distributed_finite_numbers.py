"""One number of all gradients: not finite exactly where an element is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dist_train.distributed.finite_numbers import gradient_number, weight_number

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def parameters(dtype: torch.dtype, value: float = 1.0) -> list[nn.Parameter]:
    """Two with gradients, one without."""
    found = [nn.Parameter(torch.full(shape, value, dtype=dtype)) for shape in ((300, 5), (7,), (2,))]
    for parameter in found[:2]:
        parameter.grad = torch.full_like(parameter, value)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_one_element_shows(dtype: torch.dtype, bad: float) -> None:
    found = parameters(dtype)
    assert torch.isfinite(gradient_number(found))
    assert found[1].grad is not None
    found[1].grad[3] = bad
    assert not torch.isfinite(gradient_number(found))
    assert torch.isfinite(weight_number(found))


def test_infinities_of_both_signs_show() -> None:
    found = parameters(torch.float32)
    assert found[0].grad is not None
    found[0].grad[0, 0], found[0].grad[1, 1] = float("inf"), float("-inf")
    assert not torch.isfinite(gradient_number(found))


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float16, 60_000.0), (torch.float32, 1e30), (torch.bfloat16, 1e30)]
)
def test_large_elements_are_finite(dtype: torch.dtype, value: float) -> None:
    assert torch.isfinite(gradient_number(parameters(dtype, value)))
    assert torch.isfinite(weight_number(parameters(dtype, value)))


def test_unlike_dtypes_and_sparse_gradients() -> None:
    found = [*parameters(torch.float32), *parameters(torch.float64)]
    assert torch.isfinite(gradient_number(found))
    table = nn.Embedding(9, 3, sparse=True)
    table(torch.tensor([1, 4])).sum().backward()
    assert torch.isfinite(gradient_number([*found, table.weight]))
    assert table.weight.grad is not None
    table.weight.grad._values()[0] = float("nan")
    assert not torch.isfinite(gradient_number([*found, table.weight]))


def test_no_gradient_is_finite() -> None:
    assert torch.isfinite(gradient_number([]))
