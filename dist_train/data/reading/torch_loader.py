"""The torch DataLoader behind an ExactLoader: opened at a step; its workers end with it or wait."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader

from dist_train.data.batch_partition import Order
from dist_train.data.random_keys import derive_key
from dist_train.data.reading.dataset_changes import contents_digest
from dist_train.data.reading.loader_workers import WorkerStart, close, close_in, track
from dist_train.data.reading.prefetch import ahead, copies_to
from dist_train.data.reading.sample_reader import Request, SampleReader, already_collated
from dist_train.data.reading.shared_memory import warn_if_small

logger = logging.getLogger(__name__)


class Partition(Protocol):
    """Which samples each batch of a rank has."""

    def sample_ids(self, order: Order, first_step: int) -> Iterator[list[int]]:
        """The sample ids of each batch from `first_step` on."""
        ...


@dataclass(frozen=True)
class WorkerOptions:
    """How the loader's processes are started and kept.

    Args:
        count: processes; 0 reads in the rank itself.
        persistent: keep them between epochs; None: as long as the data set stays as it is.
        prefetch_factor: batches that each worker reads ahead; None: DataLoader's 2.
        timeout_s: seconds to wait for a batch; 0: for ever.
        init_fn: as DataLoader's.
        start_method: "fork", "spawn" or "forkserver".
    """

    count: int = 0
    persistent: bool | None = None
    prefetch_factor: int | None = None
    timeout_s: float = 0
    init_fn: Callable[[int], None] | None = None
    start_method: str = "fork"


class _Kept:
    """Workers that wait for the next epoch, and what their data set was when they started."""

    def __init__(self, loader: DataLoader[Any], contents: str | None, iterator: Any) -> None:
        self.loader = loader
        self.contents = contents
        self.iterator = iterator

    def lost_worker(self) -> bool:
        """Whether one has ended meanwhile."""
        return not all(worker.is_alive() for worker in self.iterator._workers)


class TorchLoader:
    """Opens this rank's batches; the same arguments in every epoch.

    Args:
        device: a GPU to which batches are copied ahead.
        rank: workers of each rank have seeds of their own.
    """

    def __init__(
        self,
        reader: SampleReader,
        workers: WorkerOptions,
        pin_memory: bool = False,
        device: torch.device | None = None,
        rank: int = 0,
    ) -> None:
        self.rank = rank
        self.reader = reader
        self.workers = workers
        self.pin_memory = pin_memory
        self.device = device
        self._requests = _Requests()
        self._kept: _Kept | None = None
        self._opened: object = None
        self._at_deletion: Any = None

    @contextmanager
    def open(
        self,
        partition: Partition,
        order: Order,
        epoch: int,
        first_step: int,
        summarised: Sequence[int] = (),
    ) -> Iterator[Iterator[Any]]:
        """This rank's batches from `first_step` on; an error ends the workers, and so does the block's end
        unless they are kept.

        Args:
            summarised: samples whose summaries are given first, in place of a batch. They are read where
                batches are: a data set that opens its files at the first read must not do so here and
                share them with workers that are forked later.
        """
        warn_if_small(self.workers.count)
        self._requests.begin(partition, order, epoch, first_step, summarised)
        iterator = self._started(epoch) if self.workers.count else self._read_here(epoch)
        opened = self._opened = object()
        # Prefetched batches do not advance the loader's position: they are not handed out yet.
        copies = copies_to(self.device)
        kept = self._kept is not None
        try:
            yield iterator if copies is None else ahead(iterator, copies)
        except GeneratorExit:
            raise
        except BaseException:
            # A later iteration may have taken over the workers that are kept.
            kept = kept and self._opened is not opened
            raise
        finally:
            if self.workers.count and not kept:
                close(iterator)
                self._forget(iterator)

    def close(self) -> None:
        """End the workers that wait for the next epoch."""
        if self._kept is not None:
            close(self._kept.iterator)
            self._forget(self._kept.iterator)

    def _read_here(self, epoch: int) -> Iterator[Any]:
        """An iterator over the requests that reads in this process."""
        if self.pin_memory:
            return iter(self._data_loader(epoch))
        # DataLoader adds nothing here but some 20 us per batch.
        return map(self._read, self._requests)

    def _read(self, request: Request) -> Any:
        if not torch._C._autograd._profiler_enabled():
            return self.reader.__getitems__(request)
        # DataLoader marks its waits in a trace, too; a mark costs some 5 us also where nothing is traced.
        with torch.profiler.record_function("data wait"):
            return self.reader.__getitems__(request)

    def _started(self, epoch: int) -> Any:
        """An iterator over the requests, with workers kept from the epoch before where they still fit."""
        if self.workers.persistent is False:
            return self._tracked(self._data_loader(epoch))
        contents = self._contents()
        kept = self._kept
        if kept is not None and kept.lost_worker():
            logger.warning("a loader worker ended between two epochs; new ones are started")
        elif kept is not None and (self.workers.persistent or kept.contents == contents is not None):
            return self._resumed(kept.loader)
        self.close()
        if self.workers.persistent is None and contents is None:
            return self._tracked(self._data_loader(epoch))
        loader = self._data_loader(epoch, persistent=True)
        iterator = self._tracked(loader)
        self._kept = _Kept(loader, contents, iterator)
        # With the last reference to this object; the exit of the process has its own.
        self._at_deletion = weakref.finalize(self, close_in, os.getpid(), iterator)
        self._at_deletion.atexit = False
        return iterator

    def _resumed(self, loader: DataLoader[Any]) -> Any:
        try:
            return iter(loader)
        except BaseException:
            self.close()
            raise

    def _contents(self) -> str | None:
        return None if self.workers.persistent else contents_digest(self.reader.dataset, self.reader.collate)

    def _forget(self, iterator: Any) -> None:
        if self._kept is not None and self._kept.iterator is iterator:
            self._kept = None
            self._at_deletion.detach()

    def _tracked(self, loader: DataLoader[Any]) -> Any:
        iterator = iter(loader)
        track(iterator)
        return iterator

    def _data_loader(self, epoch: int, persistent: bool = False) -> DataLoader[Any]:
        options = self.workers
        start = WorkerStart(options.init_fn, options.start_method) if options.count else None
        requests: Any = self._requests
        return DataLoader(
            self.reader,
            batch_sampler=requests,
            num_workers=options.count,
            collate_fn=already_collated,
            pin_memory=self.pin_memory,
            timeout=options.timeout_s,
            worker_init_fn=start,
            multiprocessing_context=options.start_method if options.count else None,
            generator=self._generator(epoch),
            prefetch_factor=options.prefetch_factor,
            persistent_workers=persistent,
        )

    def _generator(self, epoch: int) -> torch.Generator:
        # DataLoader draws a base seed for its workers at every iter(): from this generator, never from the
        # global one, whose every draw is part of the training's bits.
        # By rank too: a worker_init_fn that seeds by torch.initial_seed() must not seed all ranks alike.
        domain = f"workers of rank {self.rank}" if self.rank else "workers"
        key = derive_key(domain, self.reader.seed, epoch, self.reader.dataset_id)
        return torch.Generator().manual_seed(key >> 1)


class _Requests:
    """DataLoader's batch sampler: this rank's requests of the iteration that began last, in order."""

    def __init__(self) -> None:
        self._now: Iterator[Request] = iter(())

    def begin(
        self, partition: Partition, order: Order, epoch: int, first_step: int, summarised: Sequence[int]
    ) -> None:
        """Go to a step of an epoch."""
        first = [Request(epoch, list(summarised), summarise=True)] if summarised else []
        self._now = chain(first, (Request(epoch, ids) for ids in partition.sample_ids(order, first_step)))

    def __iter__(self) -> Iterator[Request]:
        return self._now
