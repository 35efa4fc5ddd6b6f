"""Samples per second of dt.loader beside torch's DataLoader: batched queries, and workers over epochs.

Prints medians and the middle 80 % of the rounds, which are interleaved; asserts nothing.

    python benchmarks/loader_speed.py [--rounds 10]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from dist_train.data.exact_loader import ExactLoader

SAMPLES, BATCH = 8192, 512
QUERY_S = 400e-6
EPOCHS, EPOCH_BATCHES = 4, 8


class Queried(Dataset[torch.Tensor]):
    """Samples that come by a query of 0.4 ms, for one sample or for many."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, ids: list[int]) -> list[torch.Tensor]:
        time.sleep(QUERY_S)
        return list(torch.tensor(ids).unbind())


class DrawsToo(Queried):
    """The same, but a sample is drawn at random: it must be read on its own."""

    def __getitems__(self, ids: list[int]) -> list[torch.Tensor]:
        return [sample + torch.rand(()) for sample in super().__getitems__(ids)]


class Images(Dataset[torch.Tensor]):
    """Small images in memory."""

    def __init__(self, batches: int) -> None:
        self.images = torch.zeros(batches * 32, 3, 32, 32)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.images[index]


def samples_per_second(loader: Any) -> float:
    """Of one epoch."""
    start, count = time.perf_counter(), 0
    for batch in loader:
        count += len(batch)
    return count / (time.perf_counter() - start)


def epochs_ms(loader: Any) -> float:
    """Milliseconds per epoch, after a first one."""
    list(loader)
    start = time.perf_counter()
    for _ in range(EPOCHS):
        list(loader)
    elapsed = (time.perf_counter() - start) * 1000 / EPOCHS
    if isinstance(loader, ExactLoader):
        loader.close()
    return elapsed


Case = tuple[str, Callable[[], float]]


def reads() -> list[Case]:
    """Samples per second of batched queries, in the rank itself."""
    few = range(BATCH)  # one batch: sample by sample it takes a second
    drawing = torch.utils.data.Subset(DrawsToo(), few)
    return [
        ("torch DataLoader", lambda: samples_per_second(DataLoader(Queried(), BATCH, shuffle=True))),
        ("dt.loader", lambda: samples_per_second(ExactLoader(Queried(), BATCH))),
        ("dt.loader, data set draws", lambda: samples_per_second(ExactLoader(drawing, BATCH))),
    ]


def epochs() -> list[Case]:
    """Milliseconds per epoch of few batches, with two workers."""
    images = Images(EPOCH_BATCHES)
    torchs: dict[str, Any] = {"batch_size": 32, "shuffle": True, "num_workers": 2}
    return [
        ("torch DataLoader, new workers", lambda: epochs_ms(DataLoader(images, **torchs))),
        (
            "torch DataLoader, persistent",
            lambda: epochs_ms(DataLoader(images, **torchs, persistent_workers=True)),
        ),
        (
            "dt.loader, new workers",
            lambda: epochs_ms(ExactLoader(images, 32, workers=2, persistent_workers=False)),
        ),
        ("dt.loader", lambda: epochs_ms(ExactLoader(images, 32, workers=2))),
    ]


def show(title: str, cases: list[Case], rounds: int, unit: str) -> None:
    """Run the cases in turn and print their medians."""
    found: dict[str, list[float]] = {name: [] for name, _ in cases}
    for _ in range(rounds):
        for name, measure in cases:
            found[name].append(measure())
    print(f"{title}: {rounds} interleaved rounds, median [10 % .. 90 %]")
    for name, values in found.items():
        ordered = sorted(values)
        tenth = len(ordered) // 10
        low, high = ordered[tenth], ordered[-1 - tenth]
        print(f"{name:<30} {statistics.median(ordered):12,.0f} {unit} [{low:,.0f} .. {high:,.0f}]")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="dt.loader beside torch's DataLoader")
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    show(f"queries of {BATCH} samples, {QUERY_S * 1000} ms each", reads(), rounds, "samples/s")
    show(f"epochs of {EPOCH_BATCHES} batches, 2 workers", epochs(), rounds, "ms/epoch ")


if __name__ == "__main__":
    main()
