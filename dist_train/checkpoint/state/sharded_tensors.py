"""This rank's part of tensors that are spread over ranks (DTensor), as boxes of the whole tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dist_train.checkpoint.format.boxes import Box, whole
from dist_train.checkpoint.store.sharded_reader import StoredTensor
from dist_train.distributed.parameter_shards import is_sharded
from dist_train.errors import CheckpointError

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
        box = box_of(key, tensor)
        values = tensor.to_local().detach()
        if box == whole(tensor.shape) and _is_everywhere(tensor):
            tensors[key] = values
            continue
        del tensors[key]
        parts = ((box, values),) if box.elements else ()
        cut = f"{tensor.device_mesh.mesh.tolist()} {tensor.placements}"
        found[key] = ShardedTensor(tensor.dtype, tuple(tensor.shape), cut, parts)
    return found


def _is_everywhere(tensor: DTensor) -> bool:
    sizes = tensor.device_mesh.shape
    return all(p.is_replicate() or size == 1 for p, size in zip(tensor.placements, sizes, strict=True))


def box_of(key: str, tensor: DTensor) -> Box:
    """Return the box of a tensor that this rank holds.

    Raises:
        CheckpointError: it holds none, or several.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise CheckpointError(f"'{key}' is spread over a mesh to which this rank does not belong")
    offset, shape = [0] * tensor.dim(), list(tensor.shape)
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate():
            continue
        if type(placement).__name__ != "Shard":
            raise CheckpointError(
                f"'{key}' is spread as {placement} over '{_name(tensor, dimension)}', which cannot be stored",
                cause="only whole copies (Replicate) and contiguous parts (Shard) are",
            )
        cut: int = placement.dim  # type: ignore[attr-defined]
        # torch's own parts: all of one size, the last ones shorter or empty.
        size = -(-shape[cut] // tensor.device_mesh.size(dimension))
        begin = min(shape[cut], size * coordinate[dimension])
        offset[cut] += begin
        shape[cut] = min(size, shape[cut] - begin)
    box, own = Box(tuple(offset), tuple(shape)), tensor.to_local()
    if own.numel() != box.elements or (box.elements and tuple(own.shape) != box.shape):
        raise CheckpointError(
            f"'{key}' has {tuple(own.shape)} on this rank, and its place in the mesh says {box.shape}",
            cause="it is spread in another way than torch.distributed.tensor spreads it",
        )
    return box


def _name(tensor: DTensor, dimension: int) -> str:
    names = tensor.device_mesh.mesh_dim_names
    return names[dimension] if names else str(dimension)


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
    box = box_of("", target)
    if isinstance(stored, StoredTensor):
        own = stored.read(box)
    else:
        own = stored[box.slices_in(whole(stored.shape))]
    local = target.to_local()
    # Of a part without elements, torch has a shape of its own.
    own = own.reshape(local.shape).to(local.device)
    kind = type(target)
    return kind.from_local(
        own,
        target.device_mesh,
        target.placements,
        run_check=False,
        shape=target.shape,
        stride=target.stride(),
    )
