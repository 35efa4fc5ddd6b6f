"""A data set in shards that are read from beginning to end: `dt.loader` reads each sample once."""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from torch.utils.data import Dataset

from dist_train.data.streams.open_shards import OpenShards
from dist_train.data.streams.shard_index import compare_lists, count_shards, hash_of_names
from dist_train.data.streams.shard_order import EpochOrder, ShardOrder
from dist_train.data.streams.shard_readers import reader_for
from dist_train.data.validation import check_count
from dist_train.distributed.control_group import Control
from dist_train.errors import ConfigError

logger = logging.getLogger(__name__)
# Open shards of the whole job; with a power of two, each rank of as many reads its own.
_INTERLEAVE = 64


class ShardedStream(Dataset[Any]):
    """Samples in shards (files, tar archives, …), given to `dt.loader` as any data set.

    Every sample is used once per epoch, and which sample is in which step is a function of (seed, epoch) and
    of the shards: not of the number of ranks or workers, so that a resume at another world size goes on
    with exactly the rest. For this the number of samples in each shard must be known: `counts`, else the
    file `index`, else the shards are counted when the loader is made.

    Reading stays sequential: the shards of the epoch's order are read `interleave` at a time, and groups of
    `shuffle_buffer` consecutive samples are shuffled. Where the number of ranks divides `interleave` and
    `batch_size`, each rank reads its own part of the shards; else ranks read shards that others read too,
    and skip (said once in a log line).

    Args:
        shards: names in order, or a pattern ("data/*.tar") whose matches are sorted. Anything that the
            reader takes can be a shard; `str(shard)` names it.
        reader: shard -> iterator over its samples, always the same ones in the same order. It may have
            `decode(sample)`, applied only to samples that are used, and `count(shard)`. None chooses by
            the name's ending: .jsonl, .txt (both also .gz), .tar, .tar.gz, .tgz, .parquet.
        transform: sample -> what is collated; what it draws from the global random generators is keyed by
            (seed, epoch, sample).
        counts: samples of each shard.
        index: a JSON file with the counts; written if it is missing or does not have all shards.
        interleave: shards read side by side by the whole job; default the largest power of two up to 64
            and up to the number of shards, and 1 without `shuffle`.
        shuffle_buffer: samples per shuffled group; as many per open shard stay in memory. 1: no shuffling
            within shards.
        dataset_id: identifies the data set; default a hash of the shards' base names and counts.

    Raises:
        ConfigError: no shard, the same shard twice, or a number out of range.
    """

    def __init__(
        self,
        shards: str | Sequence[Any],
        reader: Callable[[Any], Iterator[Any]] | None = None,
        *,
        transform: Callable[[Any], Any] | None = None,
        counts: Sequence[int] | None = None,
        index: str | Path | None = None,
        interleave: int | None = None,
        shuffle_buffer: int = 256,
        dataset_id: str | None = None,
    ) -> None:
        self.shards = _listed(shards)
        self.reader = reader_for(self.shards[0]) if reader is None else reader
        self.transform = transform
        self.index = None if index is None else Path(index)
        self.interleave = interleave
        self.shuffle_buffer = shuffle_buffer
        if interleave is not None:
            check_count("interleave", interleave, 1)
        check_count("shuffle_buffer", shuffle_buffer, 1)
        # Nothing that this class does between two samples draws a random number.
        self.deterministic_items = transform is None
        self._dataset_id = dataset_id
        self._counts: tuple[int, ...] | None = None
        self._ends: list[int] = []
        self._open: OpenShards | None = None
        if counts is not None:
            self._set_counts(_checked_counts(counts, self.shards))

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each shard; counted here if nobody has."""
        if self._counts is None:
            self._set_counts(count_shards(self.shards, self._count, self.index, Control()))
        assert self._counts is not None
        return self._counts

    @property
    def dataset_id(self) -> str:
        """What a saved position is checked against."""
        if self._dataset_id is not None:
            return self._dataset_id
        digest = xxhash.xxh3_64_hexdigest(np.array(self.counts, dtype=np.int64).tobytes())
        return f"shards-1/{hash_of_names(self.shards)}/{digest}"

    def agree(self, control: Control) -> None:
        """Compare the list of shards over the ranks, and count what is not counted yet. Collective.

        Raises:
            ConfigError: the lists or the counts differ, or a shard cannot be counted.
        """
        if self._counts is None:
            self._set_counts(count_shards(self.shards, self._count, self.index, control))
            return
        compare_lists(self.shards, control)
        everywhere = control.all_gather(list(self._counts))
        if any(other != everywhere[0] for other in everywhere):
            raise ConfigError(
                "the ranks were given different counts of the same shards",
                hint="give all ranks the same `counts`, or none: they are then counted once",
            )

    def epoch_order(self, seed: int, epoch: int, dataset_id: str, shuffle: bool) -> EpochOrder:
        """Positions of an epoch -> sample ids, as an ExactLoader reads them."""
        order = ShardOrder(self.counts, self.parts(shuffle), self.shuffle_buffer)
        return order.of_epoch(seed, epoch, dataset_id, shuffle)

    def order_identity(self, shuffle: bool) -> dict[str, Any]:
        """What the order depends on, for the saved position."""
        return {"interleave": self.parts(shuffle), "shuffle_buffer": self.shuffle_buffer if shuffle else 1}

    def parts(self, shuffle: bool) -> int:
        """Shards that are read side by side."""
        if self.interleave is not None:
            return self.interleave
        if not shuffle:
            return 1
        return 1 << (min(_INTERLEAVE, len(self.shards)).bit_length() - 1)

    def log_reading(self, world_size: int, batch_size: int, shuffle: bool) -> None:
        """Log how many shards one rank reads, if ranks read the same ones."""
        parts = self.parts(shuffle)
        shared = world_size // math.gcd(world_size, parts, batch_size)
        if shared > 1:
            logger.info(
                "each shard is read by %d of %d ranks, which skip each other's samples: with interleave (%d) "
                "and batch_size (%d) both multiples of %d, each rank reads its own shards",
                shared,
                world_size,
                parts,
                batch_size,
                world_size,
            )

    def __len__(self) -> int:
        if self._counts is None:
            return sum(self.counts)
        return self._ends[-1]

    def __getitem__(self, sample_id: int) -> Any:
        """Sample number `sample_id` in the order of the list; fast only in the order of `epoch_order`."""
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample {sample_id} is not in 0 .. {len(self) - 1}")
        shard = bisect_right(self._ends, sample_id)
        if self._open is None:
            self._open = OpenShards(
                self.shards, self.counts, self.reader, self.shuffle_buffer, self.parts(shuffle=True)
            )
        sample = self._open.get(shard, sample_id - self._ends[shard] + self.counts[shard])
        decode = getattr(self.reader, "decode", None)
        if decode is not None:
            sample = decode(sample)
        return sample if self.transform is None else self.transform(sample)

    def _set_counts(self, counts: tuple[int, ...]) -> None:
        self._counts = counts
        self._ends = list(accumulate(counts))

    def _count(self, shard: Any) -> int:
        count = getattr(self.reader, "count", None)
        return int(count(shard)) if count is not None else sum(1 for _ in self.reader(shard))


def _listed(shards: str | Sequence[Any]) -> list[Any]:
    listed = sorted(glob(shards, recursive=True)) if isinstance(shards, str) else list(shards)
    if not listed:
        raise ConfigError(
            f"no shards: {shards!r}", hint="check the folder and the pattern; each node must see the files"
        )
    names = [str(shard) for shard in listed]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ConfigError(
            f"shard {twice[0]} is listed twice",
            cause="its samples would be used twice per epoch",
            hint="list each shard once",
        )
    return listed


def _checked_counts(counts: Sequence[int], shards: Sequence[Any]) -> tuple[int, ...]:
    if len(counts) != len(shards):
        raise ConfigError(
            f"counts has {len(counts)} numbers for {len(shards)} shards", hint="give one number per shard"
        )
    for shard, count in zip(shards, counts, strict=True):
        check_count(f"counts of {shard}", count, 0)
    return tuple(int(count) for count in counts)


def agree_on_shards(dataset: Any, control: Control, batch_size: int, shuffle: bool) -> None:
    """Let the ranks agree on a ShardedStream's shards and counts; do nothing for other data. Collective.

    Raises:
        ConfigError: the ranks list other shards, or one cannot be counted.
    """
    if isinstance(dataset, ShardedStream):
        dataset.agree(control)
        if control.is_main:
            dataset.log_reading(control.world_size, batch_size, shuffle)
