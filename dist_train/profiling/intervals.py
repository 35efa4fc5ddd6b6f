"""Intervals of time as (begin, end): unions, differences, overlaps; all lists are sorted and disjoint."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Merge what overlaps or touches."""
    merged: list[Interval] = []
    for begin, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def minus(intervals: Sequence[Interval], removed: Sequence[Interval]) -> list[Interval]:
    """What of the first is in none of the second; both as `union` gives them."""
    left: list[Interval] = []
    at = 0
    for begin, end in intervals:
        while at < len(removed) and removed[at][1] <= begin:
            at += 1
        ahead = at
        while ahead < len(removed) and removed[ahead][0] < end:
            if removed[ahead][0] > begin:
                left.append((begin, removed[ahead][0]))
            begin = max(begin, removed[ahead][1])
            ahead += 1
        if begin < end:
            left.append((begin, end))
    return left


def within(intervals: Sequence[Interval], bounds: Interval) -> list[Interval]:
    """What of them lies in the bounds."""
    low, high = bounds
    return [(max(begin, low), min(end, high)) for begin, end in intervals if begin < high and end > low]


def total(intervals: Iterable[Interval]) -> float:
    """Their length."""
    return sum(end - begin for begin, end in intervals)
