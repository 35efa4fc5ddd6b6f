"""Use a data set's `__getitems__` (one query per batch) while its samples depend on nothing but their id.

Random draws of one call cannot be told apart by sample, and would depend on how samples are grouped, so on
the number of ranks. So a batch during which a global generator moved is read again sample by sample, each
keyed, and so are all later ones. What a sample is does not depend on which way it was read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import Dataset, Subset, get_worker_info

from dist_train.data.reading.same_sample import same_sample
from dist_train.data.reading.sample_rng import GlobalRng

logger = logging.getLogger(__name__)
# Samples of a process's first batch that are also read one by one.
_COMPARED = 2


def has_batched_items(dataset: Any) -> bool:
    """Whether `__getitems__` is the data set's own: torch's Subset has one that only passes on."""
    return callable(getattr(_own(dataset), "__getitems__", None))


def _own(dataset: Any) -> Any:
    """The data set whose `__getitems__` is called in the end."""
    while isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        dataset = dataset.dataset
    return dataset


def single_item(dataset: Any, sample_id: int) -> Any:
    """`dataset[sample_id]`, also of a data set that has `__getitems__` alone."""
    if getattr(type(dataset), "__getitem__", None) is Dataset.__getitem__:
        return dataset.__getitems__([sample_id])[0]
    return dataset[sample_id]


class BatchedItems:
    """Reads batches by `__getitems__` until one is seen to draw random numbers.

    Args:
        dataset: with a `__getitems__` of its own.
        one_by_one: reads samples by id, each keyed; keeps the generators where they are anybody's.
    """

    def __init__(self, dataset: Any, one_by_one: Callable[[list[int], int], list[Any]]) -> None:
        self.dataset = dataset
        self.one_by_one = one_by_one
        # Shared with the workers: what one of them sees, later ones (of the next epoch, too) need not find.
        self._refused = torch.zeros(1, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]
        self._compared = False

    def read(self, ids: list[int], epoch: int) -> list[Any]:
        """The samples of these ids; the generators are left as they were, whatever happens."""
        if not self._refused.item():
            items, reason = self._together(ids, epoch)
            if reason is None:
                return items
            self._refuse(reason)
        return self.one_by_one(ids, epoch)

    def _together(self, ids: list[int], epoch: int) -> tuple[list[Any], str | None]:
        """The samples, and why they must not be used."""
        before, unchanged = GlobalRng.take(), False
        try:
            items = list(self.dataset.__getitems__(ids))
            drew = not before.equals(GlobalRng.take())
            unchanged = not drew and self._compared
            return items, self._reason_against(items, ids, epoch, drew)
        finally:
            if not unchanged:
                before.restore()

    def _reason_against(self, items: list[Any], ids: list[int], epoch: int, drew: bool) -> str | None:
        if drew:
            return "it draws random numbers, and a batch's draws cannot be keyed by sample"
        if len(items) != len(ids):
            return f"it gave {len(items)} samples for {len(ids)} ids"
        if self._compared:
            return None
        self._compared = True
        singles = self.one_by_one(ids[:_COMPARED], epoch)
        if all(same_sample(one, many) for one, many in zip(singles, items, strict=False)):
            return None
        return "it gives other values than dataset[i]"

    def _refuse(self, reason: str) -> None:
        seen = self._refused.item()
        self._refused.fill_(1)
        worker = get_worker_info()
        if not seen and (worker is None or worker.id == 0):
            logger.warning(
                "%s.__getitems__ is not used: %s; its samples are read one by one, which is slower but gives "
                "the same at any number of ranks and workers (`deterministic_items = True` on the data set "
                "says that a sample depends on its index alone)",
                type(_own(self.dataset)).__name__,
                reason,
            )
