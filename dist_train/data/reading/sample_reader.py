"""Read and collate the samples of a micro-batch, in the main process or in a loader worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from torch.utils.data import Dataset, default_collate, get_worker_info

from dist_train.data.random_keys import derive_key
from dist_train.data.reading.batched_items import BatchedItems, has_batched_items, single_item
from dist_train.data.reading.dataset_state import UnchangedState
from dist_train.data.reading.sample_rng import global_rng_kept, may_draw, seed_global_rng
from dist_train.data.reading.sliced_tensors import batch_of_rows
from dist_train.data.sample_summary import read_summaries

Collate = Callable[[list[Any]], Any]


class Request(NamedTuple):
    """What DataLoader sends to a worker in place of a list of indices."""

    epoch: int
    ids: list[int]
    summarise: bool = False


class SampleReader(Dataset[Any]):
    """The dataset as DataLoader sees it: one Request in, one collated batch out.

    It collates here, and not in DataLoader, so that a random `collate_fn` is keyed too. Any random draw
    is keyed by (seed, epoch, sample id); in the main process the training's RNG state is restored after
    each batch, a worker has none to keep.

    Args:
        guard: refuses a data set whose own state changes while it is read; None: it may.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Collate | None,
        seed: int,
        dataset_id: str,
        guard: UnchangedState | None = None,
    ) -> None:
        self.dataset = dataset
        self.collate: Collate = collate_fn or default_collate
        self.seed = seed
        self.dataset_id = dataset_id
        self.items_draw = may_draw(dataset)
        self.collates_as_torch = collate_fn in (None, default_collate)
        self.collate_draws = not self.collates_as_torch
        self.guard = guard
        self.reads_many = has_batched_items(dataset)
        self.batched = (
            BatchedItems(dataset, self._kept_items) if self.reads_many and self.items_draw else None
        )

    def __getitems__(self, request: Request) -> Any:
        if request.summarise:
            return read_summaries(self.dataset, request.ids, self.seed, self.dataset_id)
        if self.guard is None:
            return self._batch(request)
        with self.guard.watched():
            return self._batch(request)

    def _batch(self, request: Request) -> Any:
        if not (self.items_draw or self.collate_draws):
            rows = batch_of_rows(self.dataset, request.ids) if self.collates_as_torch else None
            return self.collate(self._plain_items(request.ids)) if rows is None else rows
        if self.batched is not None and not self.collate_draws:
            return self.collate(self.batched.read(request.ids, request.epoch))
        with _kept():
            return self._keyed_batch(request)

    def _keyed_batch(self, request: Request) -> Any:
        if not self.items_draw:
            items = self._plain_items(request.ids)
        elif self.batched is not None:
            items = self.batched.read(request.ids, request.epoch)
        else:
            items = self._keyed_items(request.ids, request.epoch)
        if self.collate_draws:
            key = derive_key("collate", self.seed, request.epoch, self.dataset_id)
            seed_global_rng(key, request.ids[0])
        return self.collate(items)

    def _kept_items(self, ids: list[int], epoch: int) -> list[Any]:
        with _kept():
            return self._keyed_items(ids, epoch)

    def _keyed_items(self, ids: list[int], epoch: int) -> list[Any]:
        key = derive_key("sample", self.seed, epoch, self.dataset_id)
        items = []
        for sample_id in ids:
            seed_global_rng(key, sample_id)
            items.append(single_item(self.dataset, sample_id))
        return items

    def _plain_items(self, ids: list[int]) -> list[Any]:
        if self.reads_many:
            return list(self.dataset.__getitems__(ids))
        return [self.dataset[sample_id] for sample_id in ids]


def _kept() -> AbstractContextManager[None]:
    """Keeps the training's generators; a worker has none to keep."""
    return nullcontext() if get_worker_info() is not None else global_rng_kept()


def already_collated(batch: Any) -> Any:
    """DataLoader's collate_fn: SampleReader has collated already. A named function can be pickled."""
    return batch
