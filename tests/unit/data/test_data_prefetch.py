"""Batches copied ahead. No GPU here: a fake only records the calls."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import TensorDataset

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.loader import loader
from dist_train.data.reading import prefetch, shared_memory, torch_loader
from dist_train.data.reading.prefetch import ahead, copies_to
from dist_train.errors import ConfigError


class FakeCopies:
    """NOT a CUDA stream: records starts and finishes."""

    def __init__(self) -> None:
        self.diary: list[str] = []

    def start(self, batch: Any) -> Any:
        self.diary.append(f"start {batch}")
        return batch

    def finish(self, batch: Any) -> None:
        self.diary.append(f"finish {batch}")


def test_the_next_copy_begins_before_the_current_batch_is_handed_out() -> None:
    copies = FakeCopies()
    for batch in ahead(["a", "b", "c"], copies):
        copies.diary.append(f"train {batch}")
    assert copies.diary == [
        *("start a", "finish a", "start b", "train a"),
        *("finish b", "start c", "train b"),
        *("finish c", "train c"),
    ]


def test_every_batch_comes_once_whatever_it_is() -> None:
    batches = [None, (), 0, {"x": 1}]
    assert list(ahead(batches, FakeCopies())) == batches
    assert list(ahead([], FakeCopies())) == []


def test_an_error_comes_when_its_batch_is_due() -> None:
    def broken() -> Iterator[str]:
        yield "a"
        raise OSError("the disk")

    batches = ahead(broken(), FakeCopies())
    assert next(batches) == "a"  # it was read before the error
    with pytest.raises(OSError, match="the disk"):
        next(batches)


class Tracked:
    """A batch whose destruction can be observed."""


def test_only_the_current_and_the_next_batch_are_kept() -> None:
    alive: weakref.WeakSet[Tracked] = weakref.WeakSet()

    def made() -> Iterator[Tracked]:
        for _ in range(3):
            batch = Tracked()
            alive.add(batch)
            yield batch
            del batch

    gc.disable()  # reference cycles would stay
    try:
        assert [len(alive) for _ in ahead(made(), FakeCopies())] == [2, 2, 1]
        assert not alive
        batches = ahead(made(), FakeCopies())
        next(batches)
        batches.close()
        del batches  # as at a break
        assert not alive
    finally:
        gc.enable()


def test_a_caught_error_keeps_no_batch_alive() -> None:
    batch = Tracked()
    kept = weakref.ref(batch)

    def broken() -> Iterator[Tracked]:
        nonlocal batch
        yield batch
        del batch
        raise OSError("the disk")

    gc.disable()
    try:
        with contextlib.suppress(OSError):
            list(ahead(broken(), FakeCopies()))
        assert kept() is None
    finally:
        gc.enable()


def test_a_resumed_run_reads_no_sample_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after the second step: the third batch was read and copied already, and not trained."""
    monkeypatch.setattr(torch_loader, "copies_to", lambda device: FakeCopies())
    data = TensorDataset(torch.arange(10))
    whole = [batch.tolist() for epoch in range(2) for (batch,) in ExactLoader(data, 4, seed=1)][:3]
    first = ExactLoader(data, 4, seed=1)
    seen, state = [], {}
    for (batch,) in first:
        seen.append(batch.tolist())
        state = first.state_dict()
        if len(seen) == 2:
            break
    second = ExactLoader(data, 4, seed=1)
    second.load_state_dict(state)
    seen += [batch.tolist() for (batch,) in second]
    assert seen == whole
    first_again = [batch.tolist() for (batch,) in first]  # and in the process that stopped
    assert seen[2:] == first_again


class FakeStream:
    """NOT a CUDA stream: records which stream waits for which."""

    def __init__(self, name: str, diary: list[str]) -> None:
        self.name, self.diary = name, diary

    def wait_stream(self, other: FakeStream) -> None:
        self.diary.append(f"{self.name} waits for {other.name}")


class OnGpu(torch.Tensor):
    """NOT on a GPU: pretends to be, and records the calls."""

    diary: ClassVar[list[str]]
    is_cuda = True  # type: ignore[assignment]

    def record_stream(self, stream: Any) -> None:
        self.diary.append(f"held for {stream.name}")


def test_copies_and_training_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.Tensor.record_stream and the notes on CUDA semantics require; it runs without a GPU."""
    diary: list[str] = []
    side, program = FakeStream("side", diary), FakeStream("program", diary)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: side)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: program)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(OnGpu, "diary", diary, raising=False)

    def copy(batch: Any, device: torch.device) -> Any:
        diary.append("copy")
        return batch

    monkeypatch.setattr(prefetch, "to_device", copy)
    copies = copies_to(torch.device("cuda", 0))
    assert copies is not None
    sparse = torch.eye(2).to_sparse()  # record_stream does not take these
    for batch in ahead([{"x": torch.zeros(1).as_subclass(OnGpu), "y": sparse}, "second"], copies):
        diary.append(f"train {'second' if batch == 'second' else 'first'}")
    assert diary == [
        *("side waits for program", "copy", "program waits for side", "held for program"),
        # Freed memory may still be read by kernels: it is not overwritten before they are done.
        *("side waits for program", "copy", "train first", "program waits for side", "train second"),
    ]


def test_batches_for_a_gpu_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only copies from pinned memory overlap with the training."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    data = TensorDataset(torch.arange(4))
    assert loader(data, 2, device="cuda")._torch_loader.pin_memory
    assert not loader(data, 2, device="cuda", pin_memory=False)._torch_loader.pin_memory
    assert not loader(data, 2)._torch_loader.pin_memory


def test_the_position_is_that_of_the_current_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefetching must not advance the position in a checkpoint."""
    copies = FakeCopies()
    monkeypatch.setattr(torch_loader, "copies_to", lambda device: copies)
    data = ExactLoader(TensorDataset(torch.arange(10)), 4, shuffle=False)
    plain = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    seen = []
    for (batch,) in data:
        seen.append(batch.tolist())
        started = sum(word.startswith("start") for word in copies.diary)
        assert (data.step, data.samples_in_epoch) == (len(seen), min(4 * len(seen), 10))
        assert started == min(len(seen) + 1, 3)  # one more than was handed out
    assert seen == plain


def test_a_cpu_run_copies_nothing() -> None:
    assert copies_to(None) is None
    assert copies_to(torch.device("cpu")) is None
    assert len(list(loader(TensorDataset(torch.arange(4)), 2, device="cpu"))) == 2
    with pytest.raises(ConfigError, match="did you mean 'cuda:0'"):
        loader(TensorDataset(torch.arange(4)), 2, device="cuda: 0")


@pytest.mark.parametrize(
    ("workers", "total", "warned"), [(2, 64 << 20, True), (0, 64 << 20, False), (2, 1 << 30, False)]
)
def test_a_small_shared_memory_is_warned_about_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, workers: int, total: int, warned: bool
) -> None:
    monkeypatch.setattr(shared_memory, "_warned", False)
    for _ in range(2):
        shared_memory.warn_if_small(workers, total)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == warned
    assert all("/dev/shm has 64 MiB, and 2 loader worker(s)" in line for line in warnings)
