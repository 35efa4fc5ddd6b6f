"""Boxes of a tensor: what they have in common, and whether they make it whole."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dist_train.checkpoint.format.boxes import Box, overlap, tiling_fault, whole


def box(*ranges: tuple[int, int]) -> Box:
    return Box(tuple(a for a, _ in ranges), tuple(b - a for a, b in ranges))


@pytest.mark.parametrize(
    ("boxes", "fault"),
    [
        ([box((0, 4), (0, 3))], None),
        ([box((0, 2), (0, 3)), box((2, 4), (0, 3))], None),
        ([box((0, 2), (0, 1)), box((2, 4), (0, 1)), box((0, 4), (1, 3))], None),
        ([box((0, 2), (0, 3))], "6 of its 12 elements are in no part"),
        ([], "12 of its 12 elements are in no part"),
        ([box((0, 3), (0, 3)), box((2, 4), (0, 3))], "overlap"),
        ([box((0, 2), (0, 3)), box((0, 2), (0, 3))], "overlap"),
        ([box((0, 2), (0, 2)), box((1, 3), (1, 3))], "overlap"),
        ([box((0, 5), (0, 3))], "[0:5, 0:3] is not a part of it"),
        ([Box((0,), (4,))], "is not a part of it"),
    ],
)
def test_boxes_make_a_tensor_whole_or_it_is_named_what_is_wrong(boxes: list[Box], fault: str | None) -> None:
    found = tiling_fault((4, 3), boxes)
    assert (found is None) if fault is None else (found is not None and fault in found)


def test_a_single_number_is_one_box() -> None:
    assert tiling_fault((), [whole(())]) is None
    assert tiling_fault((), [whole(()), whole(())]) is not None


@given(
    cuts=st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=6),
    drop=st.integers(0, 6),
    shift=st.integers(0, 1),
)
def test_the_answer_is_that_of_counting_each_element(
    cuts: list[tuple[bool, int]], drop: int, shift: int
) -> None:
    boxes = [box((0, 7), (0, 7))]
    for along_rows, at in cuts:
        first = boxes.pop(0)
        dim = int(along_rows)
        length = first.shape[dim]
        at = at % length if length > 1 else 0
        if not at:
            boxes.append(first)
            continue
        low = Box(first.offset, tuple(at if d == dim else n for d, n in enumerate(first.shape)))
        moved = tuple(o + at if d == dim else o for d, o in enumerate(first.offset))
        high = Box(moved, tuple(n - at if d == dim else n for d, n in enumerate(first.shape)))
        boxes += [low, high]
    if drop < len(boxes):
        del boxes[drop]
    if shift and boxes and boxes[0].offset[0] > 0:
        boxes[0] = Box((boxes[0].offset[0] - 1, boxes[0].offset[1]), boxes[0].shape)
    counts = torch.zeros(7, 7, dtype=torch.int)
    for each in boxes:
        counts[each.slices_in(whole((7, 7)))] += 1
    assert (tiling_fault((7, 7), boxes) is None) == bool((counts == 1).all())


def test_what_two_boxes_have_in_common() -> None:
    assert overlap(box((0, 3), (0, 3)), box((2, 5), (1, 2))) == box((2, 3), (1, 2))
    assert overlap(box((0, 2), (0, 3)), box((2, 5), (0, 3))) is None
    assert box((2, 3), (1, 2)).slices_in(box((1, 4), (1, 4))) == (slice(1, 2), slice(0, 1))
