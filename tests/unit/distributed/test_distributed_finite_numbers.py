"""One number of all gradients: not finite exactly where an element is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

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


class Operations(TorchDispatchMode):
    """Names of the operations that run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def bucket_views(bucket: torch.Tensor, *shapes: tuple[int, ...]) -> list[nn.Parameter]:
    """Parameters, the last one first, whose gradients lie in the bucket one after the other: as DDP's."""
    found, at = [], 0
    for shape in shapes:
        parameter = nn.Parameter(torch.ones(shape, dtype=bucket.dtype))
        size = parameter.numel()
        parameter.grad = bucket[at : at + size].view(shape)
        found.append(parameter)
        at += size
    return found[::-1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_in_one_bucket_are_one_sum(dtype: torch.dtype) -> None:
    bucket = torch.ones(1024, dtype=dtype)
    found = bucket_views(bucket, (10,), (10, 50), (50,), (9,))
    with Operations() as operations:
        number = gradient_number(found)
    assert operations.names.count("sum") == 1
    assert number.item() == pytest.approx(569, rel=0.01)  # bfloat16 has no 569
    for place in (0, 9, 10, 559, 568):
        bucket[place] = float("nan")
        assert not torch.isfinite(gradient_number(found))
        bucket[place] = 1
    bucket[569:] = float("nan")  # not theirs
    assert torch.isfinite(gradient_number(found))


def test_two_buckets_and_gradients_between_which_something_lies() -> None:
    first, second = torch.ones(30), torch.ones(30)
    found = [*bucket_views(first, (10,), (20,)), *bucket_views(second, (10,))]
    apart = nn.Parameter(torch.ones(5))
    apart.grad = second[20:25]
    second[10:20] = float("inf")
    with Operations() as operations:
        assert gradient_number([*found, apart]) == 45
    assert operations.names.count("sum") == 4  # of three pieces, and of their sums
    second[24] = float("nan")
    assert not torch.isfinite(gradient_number([*found, apart]))


def test_gradients_that_are_not_in_row_order() -> None:
    bucket = torch.ones(64)
    found = bucket_views(bucket, (4,), (4, 5), (6,))
    assert found[1].grad is not None
    found[1].grad = bucket[4:24].view(5, 4).t()
    assert gradient_number(found) == 30
    for place in range(30):
        bucket[place] = float("inf")
        assert not torch.isfinite(gradient_number(found))
        bucket[place] = 1


def test_neighbours_in_memory_of_unlike_storages_are_not_read_as_one() -> None:
    memory = bytearray(4 * 30)
    whole = torch.frombuffer(memory, dtype=torch.float32)
    parts = [torch.frombuffer(memory, dtype=torch.float32, count=15, offset=at) for at in (0, 60)]
    assert parts[0].data_ptr() + 60 == parts[1].data_ptr()
    found = [nn.Parameter(torch.ones(15)) for _ in parts]
    whole.fill_(1.0)
    for parameter, part in zip(found, parts, strict=True):
        parameter.grad = part
    assert gradient_number(found) == 30
    whole[29] = float("nan")
    assert not torch.isfinite(gradient_number(found))


def test_a_gradient_without_elements_and_one_that_is_shared() -> None:
    empty, one, other = (nn.Parameter(torch.ones(shape)) for shape in ((0, 3), (4,), (4,)))
    empty.grad, one.grad = torch.ones(0, 3), torch.ones(4)
    other.grad = one.grad
    assert gradient_number([empty, one, other]) == 8
