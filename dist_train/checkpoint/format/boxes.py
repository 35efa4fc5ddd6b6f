"""Boxes: the rectangular parts into which a tensor is cut that is spread over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple


class Box(NamedTuple):
    """A part of a tensor: where it begins, and its shape."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of its elements."""
        return prod(self.shape)

    def slices_in(self, outer: Box) -> tuple[slice, ...]:
        """Where it lies in a box around it."""
        places = zip(self.offset, self.shape, outer.offset, strict=True)
        return tuple(slice(begin - base, begin - base + length) for begin, length, base in places)


def whole(shape: Sequence[int]) -> Box:
    """Return the box that is all of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def overlap(one: Box, other: Box) -> Box | None:
    """Return what two boxes of one tensor have in common; None where it has no element."""
    offset = tuple(map(max, one.offset, other.offset))
    ends = (
        min(begin + length, start + size) for begin, length, start, size in zip(*one, *other, strict=True)
    )
    shape = tuple(end - begin for end, begin in zip(ends, offset, strict=True))
    return Box(offset, shape) if all(length > 0 for length in shape) else None


def tiling_fault(shape: Sequence[int], boxes: Iterable[Box]) -> str | None:
    """Say why boxes do not make a whole tensor, each element once; None where they do.

    Args:
        shape: of the tensor.
        boxes: with at least one element each.
    """
    found, everything = sorted(boxes), whole(shape)
    for box in found:
        if len(box.offset) != len(shape) or overlap(box, everything) != box:
            return f"{_text(box)} is not a part of it"
    if pair := _overlapping(found):
        return f"{_text(pair[0])} and {_text(pair[1])} overlap"
    missing = everything.elements - sum(box.elements for box in found)
    return f"{missing} of its {everything.elements} elements are in no part" if missing else None


def _overlapping(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two boxes that overlap, of sorted ones.

    Boxes of a mesh are the cells of a grid: none overlap, if none is there twice. Others are compared in
    pairs.
    """
    if not boxes:
        return None
    edges: list[dict[int, int]] = [{} for _ in boxes[0].offset]
    is_grid = True
    for box in boxes:
        for edge, begin, length in zip(edges, *box, strict=True):
            is_grid = is_grid and edge.setdefault(begin, length) == length
    for edge in edges:
        begins = sorted(edge)
        is_grid = is_grid and all(a + edge[a] <= b for a, b in pairwise(begins))
    if is_grid:
        return next(((a, b) for a, b in pairwise(boxes) if a == b), None)
    pairs = ((a, b) for place, a in enumerate(boxes) for b in boxes[place + 1 :])
    return next(((a, b) for a, b in pairs if overlap(a, b) is not None), None)


def _text(box: Box) -> str:
    ends = (f"{begin}:{begin + length}" for begin, length in zip(*box, strict=True))
    return f"[{', '.join(ends)}]"
