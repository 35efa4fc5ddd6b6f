"""The queue of batches, and their serialization."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dist_train.inference.batch_queue import BATCHES_PER_WORKER, BatchQueue
from dist_train.inference.prediction_errors import BatchFailed
from dist_train.inference.serialization import pack, unpack


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
    queue, out = BatchQueue(workers), []
    at, deaths = {w: [] for w in range(workers)}, dict.fromkeys(range(30), 0)

    def give(worker: int) -> None:
        entry = queue.assign(worker) if queue.held(worker) < BATCHES_PER_WORKER else None
        if entry is not None:
            at[worker].append(entry.index)

    def answer(worker: int) -> None:
        index = at[worker].pop(0)
        queue.finish(worker, index, index)
        out.extend(queue.results())

    for move, number in moves:
        worker = number % workers
        if move == "a":
            if queue.next_index < batches and not queue.full:
                queue.add(memoryview(b""))
            give(worker)
        elif move == "d" and at[worker]:
            answer(worker)
        elif move == "l" and at[worker] and deaths[at[worker][0]] < 2:
            deaths[at[worker][0]] += 1
            queue.requeue(worker, "died")
            at[worker] = []
        assert sum(map(queue.held, range(workers))) <= BATCHES_PER_WORKER * workers
    for _ in range(2 * batches + 1):
        if queue.next_index < batches and not queue.full:
            queue.add(memoryview(b""))
        for worker in range(workers):
            give(worker)
            if at[worker]:
                answer(worker)
    assert out == list(range(batches))
    assert queue.settled


def test_a_workers_death_counts_for_the_batch_that_it_was_computing() -> None:
    queue = BatchQueue(1)
    for _ in range(2):
        queue.add(memoryview(b""))
    for time in (1, 2):
        first, second = queue.assign(0), queue.assign(0)
        assert first is not None
        assert second is not None
        queue.requeue(0, f"death {time}")
        assert (len(first.deaths), len(second.deaths)) == (time, 0)
    assert queue.assign(0) is first
    with pytest.raises(BatchFailed, match=r"batch 0 has ended 3 workers: death 1; death 2; death 3"):
        queue.requeue(0, "death 3")


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
