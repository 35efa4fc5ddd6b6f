"""Read samples of shards by index, forwards: open each shard once, hold one group of its samples."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from dist_train.errors import ConfigError

logger = logging.getLogger(__name__)
_END = object()
# Skipped samples per returned one, and returned ones, from which on the order of reading is worth a warning.
_MANY_SKIPPED = 20
_ENOUGH = 500


class OpenShards:
    """The shards that this process has open.

    Reading in the order of `ShardOrder` passes each shard once. Any other order gives the same samples, but
    opens shards again and again.

    Args:
        shards: what `read` takes, in the order of the list.
        counts: samples of each.
        read: shard -> its samples in order.
        held: samples per open shard that are kept: those of one shuffled group.
        side_by_side: shards that are read at the same time; others are closed after a while.
    """

    def __init__(
        self,
        shards: Sequence[Any],
        counts: Sequence[int],
        read: Callable[[Any], Iterator[Any]],
        held: int,
        side_by_side: int,
    ) -> None:
        self._shards = shards
        self._counts = counts
        self._read = read
        self._held = held
        self._stale_after = 2 * side_by_side + 16
        self._pid = os.getpid()
        self._cursors: dict[int, list[_Cursor]] = {}
        self._seen: set[int] = set()
        self._returned = 0
        self._skipped = 0
        self._warned = False

    def get(self, shard: int, index: int) -> Any:
        """Sample `index` of shard number `shard`, as its reader gives it.

        Raises:
            ConfigError: the shard does not have as many samples as were counted.
        """
        if self._pid != os.getpid():
            # A forked worker shares the offsets of its parent's open files.
            self._pid, self._cursors = os.getpid(), {}
        self._returned += 1
        first = index - index % self._held
        cursor = self._cursor(shard, index)
        cursor.last_use = self._returned
        skipped = cursor.go_to(index, first)
        if cursor.known:
            # The first opening of a shard may skip: after a resume, or where a part begins within it.
            self._skipped += skipped
            self._warn_once()
        cursor.known = True
        return cursor.held[index]

    def _cursor(self, shard: int, index: int) -> _Cursor:
        here = self._cursors.get(shard, [])
        for cursor in here:
            if index in cursor.held:
                return cursor
        before = [cursor for cursor in here if cursor.position <= index]
        if before:
            return max(before, key=lambda cursor: cursor.position)
        oldest = self._returned - self._stale_after
        kept = {at: [one for one in opened if one.last_use >= oldest] for at, opened in self._cursors.items()}
        self._cursors = {at: opened for at, opened in kept.items() if opened}
        name, count = str(self._shards[shard]), self._counts[shard]
        cursor = _Cursor(shard, name, count, iter(self._read(self._shards[shard])))
        cursor.known = shard in self._seen
        self._seen.add(shard)
        self._cursors.setdefault(shard, []).append(cursor)
        return cursor

    def _warn_once(self) -> None:
        if self._warned or self._returned < _ENOUGH or self._skipped < _MANY_SKIPPED * self._returned:
            return
        self._warned = True
        logger.warning(
            "%d samples were read for %d that were used: shards are read out of order; give the stream "
            "itself to dt.loader, not a Subset of it or a DataLoader, or make more and smaller shards",
            self._skipped + self._returned,
            self._returned,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Open files do not travel to a worker that is started by spawn.
        return {**self.__dict__, "_cursors": {}, "_pid": -1}


class _Cursor:
    """One open shard."""

    def __init__(self, shard: int, name: str, count: int, samples: Iterator[Any]) -> None:
        self.shard = shard
        self.name = name
        self.count = count
        self.position = 0  # of the next sample that is read
        self.held: dict[int, Any] = {}
        self.last_use = 0
        self.known = False
        self._first = 0
        self._samples = samples

    def go_to(self, index: int, first: int) -> int:
        """Read up to `index`, hold what lies from `first` on; returns how many samples were skipped."""
        if index in self.held:
            return 0
        if first > self._first:
            self._first = first
            self.held = {at: sample for at, sample in self.held.items() if at >= first}
        skipped = max(0, first - self.position)
        while self.position <= index:
            sample = self._next()
            if self.position >= first:
                self.held[self.position] = sample
            self.position += 1
        if self.position == self.count and self._next(end=True) is not _END:
            raise _changed(self.name, f"more than {self.count}", self.count)
        return skipped

    def _next(self, end: bool = False) -> Any:
        try:
            sample = next(self._samples, _END)
        except Exception as error:
            error.add_note(f"while reading sample {self.position} of shard {self.name}")
            raise
        if sample is _END and not end:
            raise _changed(self.name, str(self.position), self.count)
        return sample


def _changed(name: str, found: str, counted: int) -> ConfigError:
    return ConfigError(
        f"shard {name} has {found} samples; {counted} were counted",
        cause="the shard has changed since, or its reader does not always give the same samples",
        hint="delete the index file so that shards are counted again, or correct `counts`",
    )
