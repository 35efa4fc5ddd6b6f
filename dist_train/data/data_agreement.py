"""Compare what the ranks are about to iterate: the same data set, order and position on all of them.

Each rank reads only its own samples, so that unlike data sets (an unsorted file list, a split drawn
differently) would give an epoch that misses some samples and repeats others, without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import xxhash
from torch.utils.data import ConcatDataset, Subset

from dist_train.data.reading.dataset_state import is_stateful
from dist_train.data.sample_summary import alike
from dist_train.data.streams.sharded_stream import ShardedStream
from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.keyed_exchange import KeyedExchange
from dist_train.errors import ConfigError
from dist_train.rundir.name_ranks import name_ranks

_SAME_DATA = (
    "make the data set alike on all ranks: sort its file list (sorted(os.listdir(folder))), "
    "split it before dt.prepare"
)
_CAUSE = "some samples would be read several times per epoch and others never"
_SAME_ARGUMENTS = "give dt.loader the same arguments on all ranks"
_SAME_POSITION = "load the checkpoint, and begin and leave each loop over a loader, on all ranks"
_HINTS = {
    "samples": _SAME_DATA,
    "indices": _SAME_DATA,
    "dataset_id": "give the same dataset_id on all ranks",
    "order": "make the sampler from the same data on all ranks (weights, lengths, order of files)",
    "epoch": _SAME_POSITION,
    "step": _SAME_POSITION,
}
# A longer index list is compared by this many of its entries, evenly spread.
_MOST_INDICES = 1 << 20


class DataAgreement:
    """The comparisons of one loader: of everything at its first iteration, of the position at later ones.

    Args:
        exchange: the run's.
        dataset: its type is named in errors; of a Subset the indices are compared.
    """

    def __init__(self, exchange: KeyedExchange, dataset: Any) -> None:
        self._exchange = exchange
        self._dataset = dataset
        self._name: str | None = None

    def sample_ids(self, n: int) -> list[int]:
        """The samples to summarise for `begin`: a few at the first iteration, none later.

        None either where reading a sample changes the data set's own state, or reads a shard up to it; the
        ranks have compared their shards.
        """
        if is_stateful(self._dataset) or isinstance(self._dataset, ShardedStream):
            return []
        return [] if self._name is not None else sorted({0, n // 2, n - 1})

    def begin(self, facts: Mapping[str, JsonValue], summaries: str | None) -> None:
        """Compare with the other ranks. Collective, once per iteration; not in the hot loop.

        Args:
            facts: what must be equal: length, order, position.
            summaries: of the samples that `sample_ids` named, as `read_summaries` gives it.

        Raises:
            ConfigError: on every rank: the data differ, or a rank does not iterate this loader.
        """
        value = dict(facts)
        if self._name is None:
            self._name = self._exchange.new_name("loader")
            value["indices"] = index_hash(self._dataset)
        value["summaries"] = None if summaries is None else json.loads(summaries)
        what = f"the start of a loop over {self._name} ({facts.get('samples')} samples of {self._kind})"
        self._exchange.exchange(self._name, value, self._judge, what)

    @property
    def _kind(self) -> str:
        return type(self._dataset).__name__

    def _judge(self, ranks: list[JsonValue]) -> JsonValue:
        rows = cast("list[dict[str, JsonValue]]", ranks)
        for field in rows[0]:
            if field != "summaries":
                self._refuse_different(field, [row.get(field) for row in rows])
        first, *others = [cast("Any", row["summaries"]) for row in rows]
        odd = [rank for rank, other in enumerate(others, 1) if first and other and not alike(first, other)]
        if odd:
            raise ConfigError(
                f"{self._name} over {self._kind}: {name_ranks(odd)} has other samples than rank 0",
                cause=f"dataset[i] differs; {_CAUSE}",
                hint=_SAME_DATA,
            )
        return None

    def _refuse_different(self, field: str, values: list[JsonValue]) -> None:
        if all(value == values[0] for value in values):
            return
        by_value: dict[str, list[int]] = {}
        for rank, value in enumerate(values):
            by_value.setdefault(repr(value), []).append(rank)
        said = ", ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in by_value.items())
        raise ConfigError(
            f"{self._name} over {self._kind}: {field} is {said}",
            cause=_CAUSE,
            hint=_HINTS.get(field, _SAME_ARGUMENTS),
        )


def index_hash(dataset: Any) -> str | None:
    """A hash of the indices of a Subset, or of those inside a ConcatDataset; None for another data set."""
    if isinstance(dataset, ConcatDataset):
        parts = [index_hash(part) or str(len(cast("Any", part))) for part in dataset.datasets]
        return xxhash.xxh3_64_hexdigest(" ".join(parts).encode())
    if not isinstance(dataset, Subset):
        return None
    inner = index_hash(dataset.dataset)
    indices = dataset.indices
    kept = indices[:: max(1, len(indices) // _MOST_INDICES)]
    hashed = xxhash.xxh3_64(np.asarray(kept).tobytes())
    hashed.update((inner or "").encode())
    return hashed.hexdigest()
