"""The torch DataLoader behind an IterableLoader: opened for each iteration, closed with its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from dist_train.data.reading.loader_workers import WorkerStart, close, track
from dist_train.data.reading.prefetch import ahead, copies_to
from dist_train.data.reading.sample_reader import already_collated
from dist_train.data.reading.shared_memory import warn_if_small
from dist_train.data.streams.stream_agreement import STEPS_COMPARED
from dist_train.data.streams.stream_steps import StepRead, StepReader


@dataclass(frozen=True)
class TorchStream:
    """The arguments of an IterableLoader's DataLoaders, the same in every epoch.

    Args:
        workers: 0 reads in this process, 1 in a worker.
    """

    workers: int
    pin_memory: bool
    worker_init_fn: Callable[[int], None] | None
    start_method: str
    device: torch.device | None

    @contextmanager
    def open(self, reader: StepReader, key: int) -> Iterator[Iterator[StepRead]]:
        """The steps of `reader`; the worker ends with the block.

        Args:
            key: seeds the worker, 64 bits.
        """
        warn_if_small(self.workers)
        loader: DataLoader[Any] = DataLoader(
            reader,
            batch_size=None,
            num_workers=self.workers,
            collate_fn=already_collated,
            pin_memory=self.pin_memory,
            worker_init_fn=WorkerStart(self.worker_init_fn, self.start_method) if self.workers else None,
            multiprocessing_context=self.start_method if self.workers else None,
            # What one comparison needs is read while the steps of the one before it train.
            prefetch_factor=STEPS_COMPARED if self.workers else None,
            # Not from the global generator, whose every draw is part of the training's bits.
            generator=torch.Generator().manual_seed(key >> 1),
        )
        iterator = iter(loader)
        copies = copies_to(self.device)
        steps = iterator if copies is None else ahead(iterator, copies)
        if not self.workers:
            yield steps
            return
        track(iterator)
        try:
            yield steps
        finally:
            close(iterator)
