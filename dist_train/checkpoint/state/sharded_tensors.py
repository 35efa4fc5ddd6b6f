"""This rank's part of tensors that are spread over ranks (DTensor), as boxes of the whole tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dist_train.checkpoint.format.boxes import Box, whole
from dist_train.checkpoint.state.part_boxes import PartBox, boxes_of
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.distributed.parameter_shards import is_sharded

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class ShardedTensor:
    """What this rank holds of a tensor.

    Args:
        dtype: of all of it.
        shape: of all of it.
        cut: how it is spread: equal for tensors whose parts of equal shapes are on the same ranks.
        parts: each box that this rank holds, and its values; none where the rank holds nothing.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    cut: str
    parts: tuple[tuple[Box, torch.Tensor], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of this rank's part."""
        return sum(values.nbytes for _, values in self.parts)


def take_out_sharded(tensors: dict[str, torch.Tensor]) -> dict[str, ShardedTensor]:
    """Remove from `tensors` what is spread over ranks, and return it; a whole copy on each rank stays.

    Raises:
        CheckpointError: a tensor is spread in a way that boxes cannot tell.
    """
    found = {}
    for key, tensor in list(tensors.items()):
        if not is_sharded(tensor):
            continue
        boxes, values = boxes_of(key, tensor), tensor.to_local().detach()
        if _is_everywhere(tensor):
            tensors[key] = values
            continue
        del tensors[key]
        # In ascending order: the parts of a tensor in a rank's file are counted so.
        parts = tuple((box, values[own]) for box, own in sorted(boxes, key=lambda each: each.box))
        cut = f"{tensor.device_mesh.mesh.tolist()} {tensor.placements}"
        found[key] = ShardedTensor(tensor.dtype, tuple(tensor.shape), cut, parts)
    return found


def _is_everywhere(tensor: DTensor) -> bool:
    sizes = tensor.device_mesh.shape
    return all(p.is_replicate() or size == 1 for p, size in zip(tensor.placements, sizes, strict=True))


def as_spread(stored: torch.Tensor | StoredTensor, target: torch.Tensor) -> torch.Tensor:
    """Return a stored tensor as another one is: of what is sharded, this rank's part alone is read.

    Args:
        stored: of the shape of `target`.
        target: plain, or a DTensor.
    """
    if target.is_meta:
        return torch.empty_like(target)  # another rank's: nothing is read
    if not is_sharded(target):
        return stored.read() if isinstance(stored, StoredTensor) else stored
    local = target.to_local()
    # Of a part without elements, torch has a shape of its own.
    own = _read_boxes(stored, boxes_of("", target), local).reshape(local.shape).to(local.device)
    kind = type(target)
    return kind.from_local(
        own,
        target.device_mesh,
        target.placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )


def _read_boxes(
    stored: torch.Tensor | StoredTensor, boxes: Sequence[PartBox], local: torch.Tensor
) -> torch.Tensor:
    read = stored.read if isinstance(stored, StoredTensor) else lambda box: stored[_slices(box, stored)]
    if len(boxes) == 1:
        return read(boxes[0].box)
    own = torch.empty(local.shape, dtype=stored.dtype)
    for box, place in boxes:
        own[place] = read(box)
    return own


def _slices(box: Box, tensor: torch.Tensor) -> tuple[slice, ...]:
    return box.slices_in(whole(tensor.shape))
