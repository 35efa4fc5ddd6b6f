"""The book of batches and the parcels they travel in."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dist_train.inference.failures import BatchFailed
from dist_train.inference.ledger import AT_A_WORKER, Ledger
from dist_train.inference.parcel import pack, unpack


@settings(max_examples=60, deadline=None)
@given(
    workers=st.integers(1, 4),
    batches=st.integers(0, 30),
    moves=st.lists(st.tuples(st.sampled_from("aaddl"), st.integers(0, 3)), max_size=200),
)
def test_every_batch_once_and_in_order_whatever_happens(
    workers: int, batches: int, moves: list[tuple[str, int]]
) -> None:
    """a: take one in and give; d: a worker answers; l: a worker dies (at most twice over one batch)."""
    book, out, at, deaths = Ledger(workers), [], {w: [] for w in range(workers)}, dict.fromkeys(range(30), 0)

    def give(worker: int) -> None:
        entry = book.give(worker) if book.held(worker) < AT_A_WORKER else None
        if entry is not None:
            at[worker].append(entry.index)

    def answer(worker: int) -> None:
        index = at[worker].pop(0)
        book.finish(worker, index, index)
        out.extend(book.results())

    for move, number in moves:
        worker = number % workers
        if move == "a":
            if book.next_index < batches and not book.full:
                book.add(memoryview(b""))
            give(worker)
        elif move == "d" and at[worker]:
            answer(worker)
        elif move == "l" and at[worker] and deaths[at[worker][0]] < 2:
            deaths[at[worker][0]] += 1
            book.lose(worker, "died")
            at[worker] = []
        assert sum(map(book.held, range(workers))) <= AT_A_WORKER * workers
    for _ in range(2 * batches + 1):
        if book.next_index < batches and not book.full:
            book.add(memoryview(b""))
        for worker in range(workers):
            give(worker)
            if at[worker]:
                answer(worker)
    assert out == list(range(batches))
    assert book.settled


def test_only_the_batch_that_a_worker_was_at_is_blamed() -> None:
    book = Ledger(1)
    for _ in range(2):
        book.add(memoryview(b""))
    for time in (1, 2):
        first, second = book.give(0), book.give(0)
        assert first is not None
        assert second is not None
        book.lose(0, f"death {time}")
        assert (len(first.deaths), len(second.deaths)) == (time, 0)
    assert book.give(0) is first
    with pytest.raises(BatchFailed, match=r"batch 0 has ended 3 workers: death 1; death 2; death 3"):
        book.lose(0, "death 3")


class Tied(nn.Module):
    """Two names for one weight, a buffer, something empty."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(0, 2, dtype=torch.int64))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3).T,
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.zeros(0, 4),
        torch.tensor([1 + 2j]).conj(),
        torch.zeros(2, 2).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.layout}",
)
def test_a_tensor_arrives_as_it_was(tensor: torch.Tensor) -> None:
    found = unpack(bytes(pack({"x": [tensor]})))["x"][0]
    assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert torch.equal(found.to_dense(), tensor.to_dense())


def test_a_model_arrives_tied_and_trainable_as_it_was() -> None:
    model = Tied()
    model.one.weight.requires_grad_(False)
    found = unpack(bytes(pack(model)))
    assert found.two.weight is found.one.weight
    assert torch.equal(found.one.weight, model.one.weight)
    assert not found.one.weight.requires_grad
    assert found.seen.shape == (0, 2)
