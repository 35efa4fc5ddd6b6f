"""A batch of a TensorDataset is read by selecting rows: the same as torch's collate of single samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, default_collate
from torch.utils.data._utils import collate

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.reading.sample_reader import SampleReader
from dist_train.data.reading.sliced_tensors import batch_of_rows

IDS = [5, 0, 5, 2]
SHAPES = [(8,), (8, 3), (8, 0), (8, 1, 28, 28), (8, 3, 4, 4), (8, 3, 1, 1), (8, 1, 1, 1), (8, 2, 1, 3, 1)]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


def one_by_one(dataset: Any, ids: list[int]) -> list[Tensor]:
    """What DataLoader gives."""
    return default_collate([dataset[index] for index in ids])  # type: ignore[no-any-return]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    """Types, values, strides."""
    assert type(one) is type(other)
    facts = [[(type(t), t.dtype, t.shape, t.stride(), t.requires_grad) for t in ts] for ts in (one, other)]
    return facts[0] == facts[1] and all(map(torch.equal, one, other))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_what_collate_makes_of_samples(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    dataset = TensorDataset((100 * torch.randn(shape)).to(dtype), torch.arange(8))
    found = batch_of_rows(dataset, IDS)
    assert found is not None
    assert same(found, one_by_one(dataset, IDS))


def test_rows_of_nested_subsets() -> None:
    dataset = Subset(Subset(TensorDataset(torch.arange(20)), list(range(19, -1, -1))), [3, 1, 4, 1, 5, 9])
    found = batch_of_rows(dataset, IDS)
    assert found is not None
    assert same(found, one_by_one(dataset, IDS))


class Doubles(TensorDataset):
    """Its items are not its rows."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(2 * tensor[index] for tensor in self.tensors)


class SubsetOfDoubles(Subset[Any]):
    """Likewise."""

    def __getitem__(self, index: Any) -> Any:
        return tuple(2 * tensor for tensor in super().__getitem__(index))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


def grouped(indices: Any) -> Dataset[Any]:
    return Subset(TensorDataset(torch.arange(8)), indices)


class Tagged(Tensor):
    """A tensor of the program's own class."""


ONE_BY_ONE: dict[str, Callable[[], Dataset[Any]]] = {
    "subclass": lambda: Doubles(torch.arange(8)),
    "subset's subclass": lambda: SubsetOfDoubles(TensorDataset(torch.arange(8)), range(8)),
    "concatenation": lambda: ConcatDataset([TensorDataset(torch.arange(8))]),
    "strided": lambda: TensorDataset(torch.arange(16)[::2]),
    "channels last": lambda: TensorDataset(torch.ones(8, 3, 4, 4).to(memory_format=torch.channels_last)),
    "gradient": lambda: TensorDataset(torch.ones(8, requires_grad=True)),
    "tensor's subclass": lambda: TensorDataset(torch.ones(8).as_subclass(Tagged)),
    "conjugate": lambda: TensorDataset(torch.ones(8, dtype=torch.complex64).conj()),
    "unsigned": lambda: TensorDataset(torch.ones(8, dtype=torch.uint16)),
    "groups": lambda: grouped([[0, 1]] * 8),
    "groups of tensors": lambda: grouped(torch.zeros(8, 2, dtype=torch.int64)),
    "unlike groups": lambda: grouped([[0], [1, 2]] * 4),
    "slices": lambda: grouped([slice(0, 2)] * 8),
    "truth": lambda: grouped([True] * 8),
    "sparse": lambda: TensorDataset(torch.ones(8, 2).to_sparse()),
}


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_other_data_sets_are_read_one_by_one(name: str) -> None:
    assert batch_of_rows(ONE_BY_ONE[name](), IDS) is None


def test_negative_ids_are_left_to_the_data_set() -> None:
    assert batch_of_rows(TensorDataset(torch.arange(8)), [1, -1]) is None


def test_a_collate_of_the_programs_own_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = TensorDataset(torch.arange(8))
    monkeypatch.setitem(collate.default_collate_fn_map, Tensor, lambda batch, **_: batch)
    assert batch_of_rows(dataset, IDS) is None
    loader = ExactLoader(dataset, 8, shuffle=False, collate_fn=len)
    assert list(loader) == [8]


@pytest.mark.parametrize("kind", [Sequence, object])
def test_a_collate_for_the_tuple_of_a_sample_is_called(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setitem(collate.default_collate_fn_map, kind, lambda batch, **_: "the program's")
    assert list(ExactLoader(TensorDataset(torch.arange(8)), 8)) == ["the program's"]


@pytest.mark.parametrize("kind", [TensorDataset, Subset])
def test_a_replaced_method_of_torchs_class_is_called(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    monkeypatch.setattr(kind, "__getitem__", lambda self, index: ("replaced",))
    dataset = TensorDataset(torch.arange(8))
    assert batch_of_rows(dataset if kind is TensorDataset else Subset(dataset, range(8)), IDS) is None


def test_labels_of_16_bits_are_read() -> None:
    labels = torch.arange(8).to(torch.uint16)
    [[batch]] = ExactLoader(TensorDataset(labels), 8, shuffle=False)
    assert torch.equal(batch, labels)


@pytest.mark.parametrize("workers", [0, 1])
def test_loader_gives_the_batches_of_a_loader_that_reads_single_samples(workers: int) -> None:
    tensors = torch.randn(10, 3), torch.arange(10)
    batches = list(ExactLoader(TensorDataset(*tensors), 4, shuffle=False, workers=workers))
    others = list(DataLoader(TensorDataset(*tensors), 4))
    assert len(batches) == len(others) == 3
    assert all(map(same, batches, others))


def test_a_batch_of_rows_reads_no_single_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: SampleReader, ids: list[int]) -> Any:
        raise AssertionError(f"samples {ids} were read on their own")

    monkeypatch.setattr(SampleReader, "_plain_items", refuse)
    for collate_fn in (None, default_collate):
        loader = ExactLoader(TensorDataset(torch.arange(8)), 4, collate_fn=collate_fn)
        assert sorted(torch.cat([batch for (batch,) in loader]).tolist()) == list(range(8))


def test_a_batch_does_not_share_memory_with_the_data_set() -> None:
    tensor = torch.zeros(8)
    for (batch,) in ExactLoader(TensorDataset(tensor), 8, shuffle=False):
        batch += 1
    assert not tensor.any()
