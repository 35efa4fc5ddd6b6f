"""The sharded tensors of a save: compared, digested, and shared out among the ranks that write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from dist_train.checkpoint.agreement import on_every_rank
from dist_train.checkpoint.format.checkpoint_errors import ReplicaMismatch
from dist_train.checkpoint.rank_files import PartToWrite
from dist_train.checkpoint.state.collect import CollectedState
from dist_train.checkpoint.state.finite_tensors import parts_not_finite
from dist_train.checkpoint.state.shard_digests import compare_parts, digest_whole
from dist_train.checkpoint.state.shard_layout import ShardLayout, agree_on_layout
from dist_train.checkpoint.state.sharded_tensors import ShardedTensor
from dist_train.checkpoint.state.snapshot import ShardFacts

if TYPE_CHECKING:
    from dist_train.distributed.control_group import Control, JsonValue


@dataclass(frozen=True)
class ShardedState:
    """What this rank writes of the tensors that are spread over ranks.

    Args:
        parts: manifest key -> parts: fused layers that are cut by themselves give several.
        bytes_of_ranks: of what each rank writes; None where a rank writes nothing.
        facts: what the manifest says of them.
    """

    parts: Mapping[str, Sequence[PartToWrite]] = field(default_factory=dict)
    bytes_of_ranks: tuple[int | None, ...] = ()
    facts: ShardFacts = field(default_factory=ShardFacts)


@dataclass(frozen=True)
class PartsHere:
    """The parts of sharded tensors that this rank writes, and which ranks write the others.

    Args:
        layout: of all sharded tensors.
        tensors: manifest key -> tensor, of whose parts only those are left that this rank writes.
    """

    layout: ShardLayout
    tensors: Mapping[str, ShardedTensor]


def choose_parts(control: Control, step: int, collected: CollectedState) -> PartsHere:
    """Compare the copies of each part, choose who writes what (collective).

    Raises:
        ReplicaMismatch: copies of a part differ, or the ranks have unlike tensors.
        CheckpointError: the parts of a tensor do not make it whole.
    """
    tensors = collected.sharded_tensors
    layout = agree_on_layout(control, step, tensors)
    compare_parts(control, step, layout, tensors)
    here = {key: _written_here(key, tensor, layout) for key, tensor in tensors.items()}
    return PartsHere(layout, here)


def _written_here(key: str, tensor: ShardedTensor, layout: ShardLayout) -> ShardedTensor:
    parts = tuple((box, values) for box, values in tensor.parts if layout.is_written_here(key, box))
    return replace(tensor, parts=parts)


def digest_parts(control: Control, collected: CollectedState, here: PartsHere) -> ShardedState:
    """Digest the weights, look for what is not finite (collective).

    Args:
        control: all ranks.
        collected: says what the tensors are.
        here: what is digested and written.
    """
    tensors = here.tensors
    parts, non_finite = on_every_rank(control, lambda: _own_part(collected, tensors))
    weights = sorted({key for key in collected.weights.values() if key in tensors})
    digests = digest_whole(control, here.layout, tensors, weights)
    count = sum(part.values.nbytes for some in parts.values() for part in some) if parts else None
    rows: list[Any] = control.all_gather([count, [*non_finite]])
    found = tuple(sorted({name for _, names in rows for name in names}))
    return ShardedState(parts, tuple(count for count, _ in rows), ShardFacts(digests, found))


def _own_part(
    collected: CollectedState, tensors: Mapping[str, ShardedTensor]
) -> tuple[dict[str, list[PartToWrite]], tuple[str, ...]]:
    parts = {
        key: [PartToWrite(tensor.shape, box, values) for box, values in tensor.parts]
        for key, tensor in tensors.items()
        if tensor.parts
    }
    values_of = {
        key: some[0].values if len(some) == 1 else torch.cat([part.values.reshape(-1) for part in some])
        for key, some in parts.items()
    }
    return parts, parts_not_finite(collected, values_of)


def refuse_unlike_sharding(step: int, sharded: Sequence[JsonValue]) -> bool:
    """Return whether the state has sharded tensors: on all ranks, or on none.

    Args:
        step: that is being saved.
        sharded: of each rank, whether it has.

    Raises:
        ReplicaMismatch: on some ranks only; the same on all ranks.
    """
    odd = [rank for rank, has in enumerate(sharded) if has != sharded[0]]
    if odd:
        has, lacks = ("rank 0", f"rank {odd[0]}") if sharded[0] else (f"rank {odd[0]}", "rank 0")
        raise ReplicaMismatch(
            f"step {step} is not saved: the state of {has} is sharded, that of {lacks} is not",
            odd,
            cause="ranks give save() unlike models",
        )
    return bool(sharded[0])
