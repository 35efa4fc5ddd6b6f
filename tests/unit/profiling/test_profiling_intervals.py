"""Unions and differences of intervals, against sets of single moments."""

from __future__ import annotations

import random
from itertools import pairwise

from dist_train.profiling.intervals import Interval, minus, total, union, within


def moments(intervals: list[Interval]) -> set[int]:
    return {moment for begin, end in intervals for moment in range(int(begin), int(end))}


def test_they_are_what_sets_of_moments_say() -> None:
    draw = random.Random(7)
    for _ in range(500):
        a, b = ([(at, at + draw.randrange(9)) for at in draw.choices(range(40), k=6)] for _ in range(2))
        one, other = union(a), union(b)
        assert moments(one) == moments(a)
        assert total(one) == len(moments(a))
        assert moments(minus(one, other)) == moments(a) - moments(b)
        assert moments(within(one, (10, 25))) == moments(a) & set(range(10, 25))
        for found in (one, minus(one, other)):
            assert found == sorted(found)
            assert all(first[1] <= second[0] for first, second in pairwise(found))
