"""Batches of `dt.loader` beside torch's DataLoader: tensors, single samples, batched queries, workers.

    python benchmarks/loader_speed.py [--rounds 20] [--record FILE]

Both shuffle. Ratios are speeds of the same round: DataLoader's seconds / ours. `dt.loader` keeps its
guarantees in each of them: an order by (seed, epoch), a position, draws keyed by the sample. For
the last a data set that does not say that it draws nothing is read more slowly: the last rows say
what the key of one sample takes, by generator. Asserts nothing.

Like for like are all but "rows of a TensorDataset": there DataLoader(dataset, batch_size), as most
programs have it, collates row by row, and ours selects a batch's rows at once. The rows "selected by
hand" compare with a DataLoader that does so too, by a sampler of index lists and batch_size=None.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import measurements
import numpy as np
import torch
from measurements import Aim, Row
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

from dist_train.data.exact_loader import ExactLoader
from dist_train.data.reading.sample_rng import seed_global_rng

SAMPLES, BATCH = 8192, 64
QUERY_S, QUERY_BATCH = 400e-6, 512
EPOCHS, EPOCH_BATCHES = 3, 8
KEYS = 2000
_AIM = Aim(at_least=1.0)


class Images(Dataset[Any]):
    """Small images in memory, read and scaled one by one."""

    def __init__(self, samples: int) -> None:
        self.images = torch.zeros(samples, 3, 32, 32, dtype=torch.uint8)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index].float(), index % 10


class Declared(Images):
    """The same; it says that a sample depends on its index alone."""

    deterministic_items = True


class Queried(Dataset[torch.Tensor]):
    """Samples that come by a query of 0.4 ms, for one sample or for many."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.__getitems__([index])[0]

    def __getitems__(self, ids: list[int]) -> list[torch.Tensor]:
        time.sleep(QUERY_S)
        return list(torch.tensor(ids).unbind())


def epoch_ms(make: Callable[[], Any]) -> float:
    """Milliseconds of one epoch of a new loader, its second where it keeps workers."""
    loader = make()
    began = time.perf_counter()
    for _ in loader:
        pass
    return 1000 * (time.perf_counter() - began)


def kept_epoch_ms(make: Callable[[], Any]) -> float:
    """Milliseconds per epoch after a first one."""
    loader = make()
    list(loader)
    began = time.perf_counter()
    for _ in range(EPOCHS):
        list(loader)
    elapsed = 1000 * (time.perf_counter() - began) / EPOCHS
    if isinstance(loader, ExactLoader):
        loader.close()
    return elapsed


Case = Callable[[], float]


def in_the_rank() -> dict[str, dict[str, Case]]:
    """What is measured -> cases; the first of each is the base."""
    tensors = TensorDataset(torch.zeros(SAMPLES, 256), torch.zeros(SAMPLES, dtype=torch.int64))
    images, declared, queried = Images(SAMPLES), Declared(SAMPLES), Queried()

    def torchs(dataset: Any, batch: int) -> Case:
        return partial(epoch_ms, lambda: DataLoader(dataset, batch, shuffle=True))

    def ours(dataset: Any, batch: int) -> Case:
        return partial(epoch_ms, lambda: ExactLoader(dataset, batch))

    return {
        f"an epoch of {SAMPLES} rows of a TensorDataset": {
            "DataLoader": torchs(tensors, BATCH),
            "dt.loader": ours(tensors, BATCH),
        },
        f"an epoch of {SAMPLES} rows of a TensorDataset, selected by hand": {
            "DataLoader of index lists": partial(epoch_ms, lambda: _of_index_lists(tensors)),
            "dt.loader": ours(tensors, BATCH),
        },
        f"an epoch of {SAMPLES} samples one by one": {
            "DataLoader": torchs(images, BATCH),
            "dt.loader, declared": ours(declared, BATCH),
            "dt.loader, undeclared": ours(images, BATCH),
        },
        f"an epoch of queries of {QUERY_BATCH} samples, 0.4 ms each": {
            "DataLoader": torchs(queried, QUERY_BATCH),
            "dt.loader": ours(queried, QUERY_BATCH),
        },
    }


def _of_index_lists(tensors: TensorDataset) -> DataLoader[Any]:
    """A DataLoader that selects a batch's rows at once, as ours does by itself."""
    lists: Any = BatchSampler(RandomSampler(tensors), BATCH, drop_last=False)
    return DataLoader(tensors, batch_size=None, sampler=lists)


def keys_of_samples() -> dict[str, Case]:
    """What keeps the draws of undeclared samples keyed, in microseconds for one sample."""

    def each(seed: Callable[[int], object]) -> Case:
        def us() -> float:
            began = time.perf_counter()
            for number in range(KEYS):
                seed(number)
            return 1e6 * (time.perf_counter() - began) / KEYS

        return us

    return {
        "all of it": each(partial(seed_global_rng, 1 << 63)),
        "of it Python's generator": each(lambda number: random.seed((1 << 63) + number)),
        "of it numpy's": each(lambda number: np.random.seed(number)),
        "of it torch's": each(lambda number: torch.default_generator.manual_seed(number)),
    }


def by_workers() -> dict[str, dict[str, Case]]:
    """Epochs of few batches, with two workers."""
    images, declared = Images(EPOCH_BATCHES * 32), Declared(EPOCH_BATCHES * 32)
    options: dict[str, Any] = {"batch_size": 32, "shuffle": True, "num_workers": 2}

    def torchs(**more: Any) -> Case:
        return partial(kept_epoch_ms, lambda: DataLoader(images, **options, **more))

    def ours(dataset: Any, **more: Any) -> Case:
        return partial(kept_epoch_ms, lambda: ExactLoader(dataset, 32, workers=2, **more))

    what = f"an epoch of {EPOCH_BATCHES} batches by 2 workers"
    return {
        f"{what} that are kept": {
            "DataLoader, persistent": torchs(persistent_workers=True),
            "dt.loader": ours(declared),
            "dt.loader, undeclared": ours(images),
        },
        f"{what} that are new": {
            "DataLoader": torchs(),
            "dt.loader": ours(declared, persistent_workers=False),
        },
    }


def rows_of(what: str, cases: dict[str, Case], rounds: int) -> list[Row]:
    """Measure the cases in turn."""
    for case in cases.values():
        case()
    found = measurements.interleaved(cases, rounds)
    first = next(iter(cases))
    return [
        measurements.row(
            "loader_speed",
            what,
            name,
            values,
            "ms",
            None if name == first else (first, found[first]),
            None if name == first else _AIM,
            inverse=True,
        )
        for name, values in found.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    measurements.add_arguments(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for what, cases in (in_the_rank() | by_workers()).items():
        measurements.show(rows_of(what, cases, options.rounds), options.record)
    found = measurements.interleaved(keys_of_samples(), options.rounds)
    what = "the key of one undeclared sample"
    rows = [measurements.row("loader_speed", what, name, values, "us") for name, values in found.items()]
    measurements.show(rows, options.record)


if __name__ == "__main__":
    main()
