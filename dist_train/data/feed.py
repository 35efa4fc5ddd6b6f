"""The torch DataLoader behind a loader: opened at a step, closed with its workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from dist_train.data.keys import derive_key
from dist_train.data.prefetch import ahead, copies_to
from dist_train.data.reading import Request, SampleReader, already_collated
from dist_train.data.shared_memory import warn_if_small
from dist_train.data.shares import Order, SharePlan
from dist_train.data.workers import WorkerStart, close, track


@dataclass(frozen=True)
class Feed:
    """Everything about reading that does not change from epoch to epoch."""

    reader: SampleReader
    plan: SharePlan
    workers: int
    pin_memory: bool
    worker_init_fn: Callable[[int], None] | None
    start_method: str
    device: torch.device | None = None

    @contextmanager
    def open(self, order: Order, epoch: int, first_step: int) -> Iterator[Iterator[Any]]:
        """This rank's batches from `first_step` on; whatever way the block is left, no worker stays."""
        warn_if_small(self.workers)
        requests: Any = _Requests(self.plan, order, epoch, first_step)
        start = WorkerStart(self.worker_init_fn, self.start_method) if self.workers else None
        loader: DataLoader[Any] = DataLoader(
            self.reader,
            batch_sampler=requests,
            num_workers=self.workers,
            collate_fn=already_collated,
            pin_memory=self.pin_memory,
            worker_init_fn=start,
            multiprocessing_context=self.start_method if self.workers else None,
            generator=self._generator(epoch),
        )
        iterator = iter(loader)
        # Reading ahead happens below the loader's position: what was copied early is not yet handed out.
        copies = copies_to(self.device)
        batches = iterator if copies is None else ahead(iterator, copies)
        if not self.workers:
            yield batches
            return
        track(iterator)
        try:
            yield batches
        finally:
            close(iterator)

    def _generator(self, epoch: int) -> torch.Generator:
        # DataLoader draws a base seed for its workers at every iter(): from this, never from the
        # global stream, whose every draw is part of the training's bits.
        key = derive_key("workers", self.reader.seed, epoch, self.reader.dataset_id)
        return torch.Generator().manual_seed(key >> 1)


class _Requests:
    """DataLoader's batch sampler: what this rank reads, in sequence."""

    def __init__(self, plan: SharePlan, order: Order, epoch: int, first_step: int) -> None:
        self.plan = plan
        self.order = order
        self.epoch = epoch
        self.first_step = first_step

    def __iter__(self) -> Iterator[Request]:
        for ids in self.plan.reads(self.order, self.first_step):
            yield Request(self.epoch, ids)
