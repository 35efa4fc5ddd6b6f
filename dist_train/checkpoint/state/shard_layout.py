"""Agree on which rank holds which boxes of the sharded tensors, who writes each, and that none is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import xxhash

from dist_train.checkpoint.format.boxes import Box, tiling_fault
from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.format.tensor_bytes import dtype_name
from dist_train.checkpoint.state.sharded_tensors import ShardedTensor
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue

Holders = tuple[int, ...]


@dataclass(frozen=True)
class ShardLayout:
    """Which ranks hold each box; the same on all ranks.

    Tensors that are cut alike share one table: a model has hundreds of tensors, and a few kinds of them.

    Args:
        rank: this one.
        tables: of each kind, the ranks that hold each box, in ascending order.
        kinds: manifest key -> number of its kind.
    """

    rank: int
    tables: Sequence[Mapping[Box, Holders]]
    kinds: Mapping[str, int]

    def holders(self, key: str) -> Mapping[Box, Holders]:
        """Each box of a tensor, and the ranks that hold it."""
        return self.tables[self.kinds[key]]

    def is_written_here(self, key: str, box: Box) -> bool:
        """Whether this rank writes a box: of those that hold it, the first does."""
        return self.holders(key)[box][0] == self.rank

    @cached_property
    def has_replicas(self) -> bool:
        """Whether some box is on several ranks."""
        return any(len(holders) > 1 for table in self.tables for holders in table.values())


def agree_on_layout(control: Control, step: int, tensors: Mapping[str, ShardedTensor]) -> ShardLayout:
    """Exchange which boxes each rank holds (collective).

    Args:
        control: all ranks.
        step: that is being saved.
        tensors: this rank's.

    Raises:
        ReplicaMismatch: the ranks have unlike tensors.
        CheckpointError: the boxes of one do not make it whole.
    """
    kinds, boxes = _kinds(tensors)
    names = xxhash.xxh3_128_hexdigest(dump_canonical([[*kinds.items()], [*_described(tensors)]]))
    rows: list[Any] = control.all_gather([names, [[list(map(list, box)) for box in each] for each in boxes]])
    if len({row[0] for row in rows}) > 1:
        _raise_unlike(control, step, tensors)
    tables: list[dict[Box, list[int]]] = [defaultdict(list) for _ in boxes]
    for rank, (_, of_rank) in enumerate(rows):
        for table, own in zip(tables, of_rank, strict=True):
            for offset, shape in own:
                table[Box(tuple(offset), tuple(shape))].append(rank)
    for key, kind in kinds.items():
        if fault := tiling_fault(tensors[key].shape, tables[kind]):
            raise CheckpointError(
                f"step {step} is not saved: the ranks' parts of '{key}' do not make the tensor: {fault}",
                cause="the model was changed after it was spread, or its strategy spreads it wrongly",
            )
    held = [{box: tuple(ranks) for box, ranks in table.items()} for table in tables]
    return ShardLayout(control.rank, held, kinds)


def _kinds(tensors: Mapping[str, ShardedTensor]) -> tuple[dict[str, int], list[list[Box]]]:
    """The number of each tensor's kind, equal on all ranks, and this rank's boxes of each kind."""
    numbers: dict[object, int] = {}
    boxes: list[list[Box]] = []
    kinds = {}
    for key in sorted(tensors):
        tensor = tensors[key]
        own = [box for box, _ in tensor.parts]
        number = numbers.setdefault((tensor.shape, tensor.cut), len(boxes))
        if number == len(boxes):
            boxes.append(own)
        kinds[key] = number
    return kinds, boxes


def _described(tensors: Mapping[str, ShardedTensor]) -> list[JsonValue]:
    return [[key, dtype_name(tensors[key].dtype), [*tensors[key].shape]] for key in sorted(tensors)]


def _raise_unlike(control: Control, step: int, tensors: Mapping[str, ShardedTensor]) -> None:
    rows = control.all_gather(_described(tensors))
    odd = next((rank for rank, row in enumerate(rows) if row != rows[0]), 0)
    one, other = ([tuple(map(str, each)) for each in _list(row)] for row in (rows[0], rows[odd]))
    differing = sorted(set(one) ^ set(other))
    name = differing[0][0] if differing else "one"
    raise ReplicaMismatch(
        f"step {step} is not saved: the sharded tensor '{name}' is not the same on rank 0 and rank {odd}",
        [odd],
        cause="the ranks have built unlike models or optimizers, or spread them unlike",
    )


def _list(row: JsonValue) -> list[list[Any]]:
    assert isinstance(row, list)
    return row  # type: ignore[return-value]
