"""Which boxes of a whole tensor this rank's part of a DTensor is made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from dist_train.checkpoint.format.boxes import Box
from dist_train.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# The dimension of our meshes that cuts layers (tensor_parallel): what it leaves is cut again by the others.
_FIRST = "tensor"


class Interval(NamedTuple):
    """Consecutive rows (or columns) of a whole tensor."""

    begin: int
    length: int


class PartBox(NamedTuple):
    """A box that a rank holds, and where its values lie in the rank's own tensor."""

    box: Box
    own: tuple[slice, ...]


def boxes_of(key: str, tensor: DTensor) -> list[PartBox]:
    """Return the boxes of a tensor that this rank holds, in the order of its own memory; none if it is empty.

    torch's own arithmetic is not asked: it is wrong for fused layers that fully_shard cuts again
    (`full_tensor` gives their rows in another order).

    Raises:
        CheckpointError: it is spread in another way than whole copies and parts of rows or columns.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        raise CheckpointError(f"'{key}' is spread over a mesh to which this rank does not belong")
    intervals = [[Interval(0, length)] for length in tensor.shape]
    cuts = [1] * tensor.dim()
    for dimension in _order(tensor):
        placement, size = tensor.placements[dimension], tensor.device_mesh.size(dimension)
        if placement.is_replicate():
            continue
        layers = _layers(key, tensor, dimension, cuts)
        cut: int = placement.dim  # type: ignore[attr-defined]
        intervals[cut] = _rows_of(intervals[cut], layers, size, coordinate[dimension])
        cuts[cut] *= size
    _check_shape(key, tensor, intervals)
    return _boxes(intervals)


def _order(tensor: DTensor) -> list[int]:
    names = tensor.device_mesh.mesh_dim_names or ()
    first = [dimension for dimension, name in enumerate(names) if name == _FIRST]
    return [*first, *(d for d in range(tensor.device_mesh.ndim) if d not in first)]


def _layers(key: str, tensor: DTensor, dimension: int, cuts: Sequence[int]) -> int:
    """In how many layers, of which each is cut by itself, a dimension of the mesh cuts."""
    placement: Any = tensor.placements[dimension]
    kind, name = type(placement).__name__, _name(tensor, dimension)
    if kind == "Shard":
        return 1
    if kind == "_StridedShard":
        factor = int(placement.split_factor)
        if name == _FIRST:
            return factor
        if factor == cuts[placement.dim]:
            return 1  # what the dimension before has left is cut as a whole
    raise CheckpointError(
        f"'{key}' is spread as {placement} over '{name}', which cannot be stored",
        cause="only whole copies (Replicate) and contiguous parts (Shard) are",
    )


def _rows_of(intervals: Sequence[Interval], layers: int, size: int, rank: int) -> list[Interval]:
    """Of each layer this rank's rows: torch's own parts, all of one size, the last ones shorter or empty."""
    total = sum(interval.length for interval in intervals)
    layer = total // layers
    part = -(-layer // size)
    found: list[Interval] = []
    for number in range(layers):
        begin, end = number * layer + min(layer, part * rank), number * layer + min(layer, part * (rank + 1))
        for interval in _between(intervals, begin, end):
            last = found[-1] if found else None
            if last is not None and last.begin + last.length == interval.begin:
                found[-1] = Interval(last.begin, last.length + interval.length)
            else:
                found.append(interval)
    return found


def _between(intervals: Sequence[Interval], begin: int, end: int) -> list[Interval]:
    """The rows `begin` to `end` of the intervals, counted one after the other."""
    found, place = [], 0
    for interval in intervals:
        first, last = max(begin, place), min(end, place + interval.length)
        if first < last:
            found.append(Interval(interval.begin + first - place, last - first))
        place += interval.length
    return found


def _boxes(intervals: Sequence[Sequence[Interval]]) -> list[PartBox]:
    along: list[list[tuple[Interval, slice]]] = []
    for of_dimension in intervals:
        place, row = 0, []
        for interval in of_dimension:
            row.append((interval, slice(place, place + interval.length)))
            place += interval.length
        along.append(row)
    found = []
    for cell in product(*along):
        box = Box(
            tuple(interval.begin for interval, _ in cell), tuple(interval.length for interval, _ in cell)
        )
        if box.elements:
            found.append(PartBox(box, tuple(own for _, own in cell)))
    return found


def _check_shape(key: str, tensor: DTensor, intervals: Sequence[Sequence[Interval]]) -> None:
    shape = tuple(sum(interval.length for interval in row) for row in intervals)
    own = tensor.to_local()
    if own.numel() != Box(shape, shape).elements or (own.numel() and tuple(own.shape) != shape):
        raise CheckpointError(
            f"'{key}' has {tuple(own.shape)} on this rank, and its place in the mesh says {shape}",
            cause="it is spread in another way than torch.distributed.tensor spreads it",
        )


def _name(tensor: DTensor, dimension: int) -> str:
    names = tensor.device_mesh.mesh_dim_names
    return names[dimension] if names else str(dimension)
