"""The order of each epoch: a permutation that is computed, or what a sampler gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from dist_train.data.batch_partition import BatchPartition, Order
from dist_train.data.permutation import Permutation
from dist_train.data.random_keys import derive_key
from dist_train.data.sampled_batches import SampledBatches
from dist_train.data.sampler_protocol import batches_of, drawn_twice, ids_of, refuse_part_of_an_epoch
from dist_train.data.streams.sharded_stream import ShardedStream
from dist_train.errors import ConfigError

# What `sampler=` and `batch_sampler=` take: an iterable, or a function of (seed, epoch) that gives one.
SampleSource = Iterable[Any] | Callable[[int, int], Iterable[Any]]


class EpochOrders(Protocol):
    """Which samples an epoch has, in which order, and who reads which."""

    @property
    def sampled(self) -> bool:
        """Whether a sampler gives the order."""
        ...

    def partition(self, epoch: int) -> BatchPartition:
        """Steps of this epoch, and this rank's part of each."""
        ...

    def order(self, epoch: int) -> Order:
        """Positions of this epoch -> sample ids."""
        ...

    def digest(self, epoch: int) -> str:
        """A hash of this epoch's order; empty where it follows from the loader's arguments."""
        ...


@dataclass(frozen=True)
class PermutedOrders:
    """Every sample once, permuted by (seed, epoch, dataset id), or in the data set's order."""

    every: BatchPartition
    seed: int
    dataset_id: str
    shuffle: bool
    sampled = False

    def partition(self, epoch: int) -> BatchPartition:
        """The same in every epoch."""
        return self.every

    def order(self, epoch: int) -> Order:
        """Refuses a seed that is out of range."""
        if not self.shuffle:
            return _unchanged
        return Permutation(self.every.n, self.seed, epoch, self.dataset_id).__getitem__

    def digest(self, epoch: int) -> str:
        """Empty: length, seed and dataset id say it all."""
        return ""


@dataclass(frozen=True)
class ShardOrders(PermutedOrders):
    """Every sample of a ShardedStream once, so that shards are read from beginning to end."""

    stream: ShardedStream

    def order(self, epoch: int) -> Order:
        """Shards side by side, and groups of neighbouring samples shuffled."""
        return self.stream.epoch_order(self.seed, epoch, self.dataset_id, self.shuffle)


@dataclass(frozen=True)
class _Drawn:
    """One epoch of a sampler."""

    epoch: int
    ids: NDArray[np.int64]
    partition: BatchPartition
    digest: str


class SampledOrders:
    """The orders of a sampler or batch sampler, drawn with everything random keyed by (seed, epoch).

    Every rank draws the whole epoch (8 bytes per sample) and reads its part of each step, so that the
    order does not depend on the world size. The first epoch is drawn twice, and refused if the two differ.

    Args:
        source: `sampler=` or `batch_sampler=`.
        dataset_size: ids are 0 .. dataset_size - 1.
        whole: partition of the data set; its ranks, micro-batches and batch size apply to each epoch.
        in_batches: the source gives lists of ids, each one the step of the whole job.

    Raises:
        ConfigError: the source gives one rank's part, does not repeat itself, or gives no sample ids.
    """

    sampled = True

    def __init__(
        self,
        source: SampleSource,
        dataset_size: int,
        whole: BatchPartition,
        seed: int,
        dataset_id: str,
        *,
        in_batches: bool,
    ) -> None:
        refuse_part_of_an_epoch(source)
        self._source = source
        self._dataset_size = dataset_size
        self._whole = whole
        self._seed = seed
        self._dataset_id = dataset_id
        self._in_batches = in_batches
        self._checked = False
        self._newest: _Drawn | None = None

    def partition(self, epoch: int) -> BatchPartition:
        """Draws the epoch, unless it was the last one drawn."""
        return self._epoch(epoch).partition

    def order(self, epoch: int) -> Order:
        """The ids drawn for this epoch, by position."""
        return self._epoch(epoch).ids.__getitem__

    def digest(self, epoch: int) -> str:
        """XXH3-128 of the ids and of the sizes of batches."""
        return self._epoch(epoch).digest

    def _epoch(self, epoch: int) -> _Drawn:
        if self._newest is None or self._newest.epoch != epoch:
            self._newest = self._draw(epoch)
        return self._newest

    def _draw(self, epoch: int) -> _Drawn:
        key = derive_key("sampler", self._seed, epoch, self._dataset_id)
        read = batches_of if self._in_batches else ids_of
        ids, sizes = drawn_twice(
            lambda items: read(items, self._dataset_size),
            self._source,
            self._seed,
            epoch,
            key,
            times=1 if self._checked else 2,
        )
        self._checked = True
        digest = xxhash.xxh3_128(ids.tobytes())
        whole = self._whole
        if sizes is None:
            partition = BatchPartition(
                len(ids), whole.batch_size, whole.rank, whole.world_size, whole.micros, whole.drop_last
            )
        else:
            digest.update(sizes.tobytes())
            partition = SampledBatches(
                len(ids), int(sizes.max()), whole.rank, whole.world_size, whole.micros, sizes=sizes
            )
        return _Drawn(epoch, ids, partition, digest.hexdigest())


def orders_of(
    dataset: Any,
    whole: BatchPartition,
    sampler: SampleSource | None,
    batch_sampler: SampleSource | None,
    seed: int,
    dataset_id: str,
    shuffle: bool,
) -> EpochOrders:
    """The sampler's or batch sampler's orders, those of shards, else a permutation of the data set.

    Raises:
        ConfigError: a sampler of shards that are read from beginning to end.
    """
    in_batches = batch_sampler is not None
    source = batch_sampler if in_batches else sampler
    if isinstance(dataset, ShardedStream):
        if source is not None:
            raise ConfigError(
                "a ShardedStream with a sampler",
                cause="shards are read from beginning to end; a sampler would have each read many times",
                hint="remove the sampler; shuffle_buffer and interleave of the ShardedStream shuffle it",
            )
        return ShardOrders(whole, seed, dataset_id, shuffle, dataset)
    if source is None:
        return PermutedOrders(whole, seed, dataset_id, shuffle)
    return SampledOrders(source, whole.n, whole, seed, dataset_id, in_batches=in_batches)


def _unchanged(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions
