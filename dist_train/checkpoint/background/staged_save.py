"""What is saved, in copies that the training does not change: a thread can write it meanwhile."""

from __future__ import annotations

from dataclasses import replace

import torch

from dist_train.checkpoint.background.staging_buffer import StagingBuffer
from dist_train.checkpoint.prepared_save import PreparedSave
from dist_train.checkpoint.sharded_state import PartsHere
from dist_train.checkpoint.state.collect import CollectedState


def stage(prepared: PreparedSave, buffer: StagingBuffer, rank: int) -> PreparedSave:
    """Return the same save with this rank's tensors copied to `buffer`; it refers to no live memory.

    A rank copies what it writes: rank 0 what all ranks have, each rank what it alone holds.

    Args:
        prepared: what is saved.
        buffer: holds the copies until it is used again.
        rank: this one.
    """
    replicated = prepared.collected.tensors if rank == 0 else {}
    tensors = dict(replicated) | dict(prepared.own.tensors)
    parts = {} if prepared.parts is None else prepared.parts.tensors
    for key, tensor in parts.items():
        tensors |= {f"{key} {box.offset}": values for box, values in tensor.parts}
    copies = buffer.copy(tensors)
    staged_parts = None if prepared.parts is None else _parts(prepared.parts, copies)
    return replace(
        prepared,
        collected=_collected(prepared.collected, copies, staged_parts, rank),
        own=replace(prepared.own, tensors={key: copies[key] for key in prepared.own.tensors}),
        parts=staged_parts,
    )


def _parts(here: PartsHere, copies: dict[str, torch.Tensor]) -> PartsHere:
    tensors = {
        key: replace(tensor, parts=tuple((box, copies[f"{key} {box.offset}"]) for box, _ in tensor.parts))
        for key, tensor in here.tensors.items()
    }
    return replace(here, tensors=tensors)


def _collected(
    collected: CollectedState, copies: dict[str, torch.Tensor], parts: PartsHere | None, rank: int
) -> CollectedState:
    owned = {
        key: {name: copies[name] for name in tensors} if rank == 0 else {}
        for key, tensors in collected.owned.items()
    }
    sharded = (
        {}
        if parts is None
        else {key: {name: parts.tensors[name] for name in found} for key, found in collected.sharded.items()}
    )
    # Buffers outside any state_dict are gathered by now; per_rank refers to the user's objects.
    return replace(collected, owned=owned, sharded=sharded, local_buffers={}, per_rank={})
