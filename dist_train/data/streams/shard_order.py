"""The order of an epoch over shards: a pure function of (seed, epoch, shard sizes), at any position at once.

The shards are put into the epoch's order and laid end to end. That line is cut into `interleave` parts of
equal length, read side by side: position p is row p // interleave of part p % interleave. Within a shard,
groups of `shuffle_buffer` consecutive samples are permuted. So each part is read from its beginning to its
end, whatever the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dist_train.data.permutation import Permutation

# Permuted groups that are kept: every open shard uses one at a time.
_CACHED_GROUPS = 512

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class ShardOrder:
    """What the order depends on besides seed and epoch.

    Args:
        counts: samples of each shard, in the order of the list.
        interleave: shards that are read side by side by the whole job.
        shuffle_buffer: consecutive samples of a shard that are permuted among themselves.
    """

    counts: tuple[int, ...]
    interleave: int
    shuffle_buffer: int

    def of_epoch(self, seed: int, epoch: int, dataset_id: str, shuffle: bool) -> EpochOrder:
        """The order of one epoch; without `shuffle` shards and samples keep the order of the list."""
        return EpochOrder(self, seed, epoch, dataset_id, shuffle)


class EpochOrder:
    """Positions of one epoch -> sample ids; sample ids number the samples in the order of the list."""

    def __init__(self, order: ShardOrder, seed: int, epoch: int, dataset_id: str, shuffle: bool) -> None:
        counts = np.array(order.counts, dtype=np.int64)
        self._counts = counts
        self._first_ids = np.cumsum(counts) - counts
        self._parts = order.interleave
        self._rows, self._longer = divmod(int(counts.sum()), order.interleave)
        self._buffer = order.shuffle_buffer
        self._shuffle = shuffle
        self._key = (seed, epoch, dataset_id)
        listed = np.arange(len(counts), dtype=np.int64)
        if shuffle:
            listed = Permutation(len(counts), seed, epoch, f"{dataset_id}/shards")[listed]
        self._shards = listed
        self._ends = np.cumsum(counts[listed])
        self._permuted_group = lru_cache(_CACHED_GROUPS)(self._permute_group)

    def __call__(self, positions: Ids) -> Ids:
        part, row = positions % self._parts, positions // self._parts
        line = part * self._rows + np.minimum(part, self._longer) + row
        turn = np.searchsorted(self._ends, line, side="right")
        shard = self._shards[turn]
        inside = line - (self._ends[turn] - self._counts[shard])
        if self._shuffle and self._buffer > 1:
            inside = self._shuffled(shard, inside)
        result: Ids = self._first_ids[shard] + inside
        return result

    def _shuffled(self, shard: Ids, inside: Ids) -> Ids:
        group = inside // self._buffer
        keys = np.stack([shard, group], axis=1)
        pairs, which = np.unique(keys, axis=0, return_inverse=True)
        which = which.reshape(-1)
        shuffled = np.empty_like(inside)
        by_group = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
        for mine, (one_shard, one_group) in zip(by_group, pairs.tolist(), strict=True):
            first = one_group * self._buffer
            shuffled[mine] = first + self._permuted_group(one_shard, one_group)[inside[mine] - first]
        return shuffled

    def _permute_group(self, shard: int, group: int) -> Ids:
        seed, epoch, dataset_id = self._key
        size = min(self._buffer, int(self._counts[shard]) - group * self._buffer)
        permutation = Permutation(size, seed, epoch, f"{dataset_id}/shard {shard}/{group}")
        return permutation[np.arange(size, dtype=np.int64)]
