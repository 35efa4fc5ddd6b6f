"""From sample ids to a collated batch, in the main process or in a loader worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch.utils.data import Dataset, default_collate, get_worker_info

from dist_train.data.keys import derive_key
from dist_train.data.randomness import global_streams_kept, may_draw, seed_global_streams

Collate = Callable[[list[Any]], Any]


class Request(NamedTuple):
    """What travels to a worker in place of a list of indices."""

    epoch: int
    ids: list[int]


class SampleReader(Dataset[Any]):
    """The dataset as DataLoader sees it: one Request in, one collated batch out.

    Collating here, and not in DataLoader, keeps a random `collate_fn` keyed too. Any random draw
    is keyed by (seed, epoch, sample id); in the main process the training's own streams are put
    back once per batch, a worker has nobody else's streams to spoil.
    """

    def __init__(self, dataset: Any, collate_fn: Collate | None, seed: int, dataset_id: str) -> None:
        self.dataset = dataset
        self.collate: Collate = collate_fn or default_collate
        self.seed = seed
        self.dataset_id = dataset_id
        self.items_draw = may_draw(dataset)
        self.collate_draws = collate_fn is not None
        self.reads_many = callable(getattr(dataset, "__getitems__", None))

    def __getitems__(self, request: Request) -> Any:
        if not (self.items_draw or self.collate_draws):
            return self.collate(self._plain_items(request.ids))
        if get_worker_info() is not None:
            return self._keyed_batch(request)
        with global_streams_kept():
            return self._keyed_batch(request)

    def _keyed_batch(self, request: Request) -> Any:
        if self.items_draw:
            items = list(self._keyed_items(request))
        else:
            items = self._plain_items(request.ids)
        if self.collate_draws:
            key = derive_key("collate", self.seed, request.epoch, self.dataset_id)
            seed_global_streams(key, request.ids[0])
        return self.collate(items)

    def _keyed_items(self, request: Request) -> Iterator[Any]:
        key = derive_key("sample", self.seed, request.epoch, self.dataset_id)
        for sample_id in request.ids:
            seed_global_streams(key, sample_id)
            yield self.dataset[sample_id]

    def _plain_items(self, ids: list[int]) -> list[Any]:
        if self.reads_many:
            return list(self.dataset.__getitems__(ids))
        return [self.dataset[sample_id] for sample_id in ids]


def already_collated(batch: Any) -> Any:
    """DataLoader's collate_fn: SampleReader has done it (a function by name, so that spawn can pickle it)."""
    return batch
