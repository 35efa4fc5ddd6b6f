"""One curve, thinned while it is read: of each few neighbouring records the extremes are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

# Of each curve; the width of a chart in pixels is of this order.
MOST_BUCKETS = 400


class Point(NamedTuple):
    """One value: at which step, and how many seconds after the run's beginning."""

    step: float
    at_s: float
    value: float


class Band(NamedTuple):
    """Neighbouring values."""

    mean: Point
    low: float
    high: float


class _Bucket:
    """Neighbouring points of one piece: the first, the lowest, the highest, and the mean of all."""

    __slots__ = ("count", "first", "high", "low", "piece", "total")

    def __init__(self, piece: int, point: Point) -> None:
        self.piece = piece
        self.first = self.low = self.high = point
        self.count = 1
        self.total = point.value

    @property
    def mean(self) -> Point:
        """The mean value, at the first of them."""
        # Of values whose sum is no float any more the middle is shown.
        value = self.total / self.count
        middle = self.low.value / 2 + self.high.value / 2
        return Point(self.first.step, self.first.at_s, value if math.isfinite(value) else middle)

    def join(self, other: _Bucket) -> None:
        """Take in the bucket after this one."""
        self.low = other.low if other.low.value < self.low.value else self.low
        self.high = other.high if other.high.value > self.high.value else self.high
        self.count += other.count
        self.total += other.total


class Curve:
    """The values of one name in the order of the file; a step back begins another piece of it.

    Attributes:
        count: values that were added.
        first: the first that is finite.
        not_finite: how many are nan or infinite, and the step of the first of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: Point | None = None
        self.not_finite = 0
        self.first_not_finite: float | None = None
        self._buckets: list[_Bucket] = []
        self._pieces = 0
        self._size = 1
        self._filled = 0
        self._newest_step = -math.inf
        self._last = (0.0, 0.0, 0.0)

    def add(self, step: float, at_s: float, value: float) -> None:
        """Add the next value of the file. Of most of a million no object is made."""
        self.count += 1
        if step <= self._newest_step or not self._pieces:
            self._pieces += 1
            self._filled = self._size  # the next value begins a bucket
        self._newest_step = step
        if not math.isfinite(value):
            self.not_finite += 1
            self.first_not_finite = step if self.first_not_finite is None else self.first_not_finite
            return
        self._last = (step, at_s, value)
        if self._filled < self._size:
            self._filled += 1
            bucket = self._buckets[-1]
            bucket.count += 1
            bucket.total += value
            if value < bucket.low.value:
                bucket.low = Point(step, at_s, value)
            elif value > bucket.high.value:
                bucket.high = Point(step, at_s, value)
            return
        point = Point(step, at_s, value)
        self.first = point if self.first is None else self.first
        self._buckets.append(_Bucket(self._pieces - 1, point))
        self._filled = 1
        if len(self._buckets) >= 2 * MOST_BUCKETS:
            self._thin()

    @property
    def last(self) -> Point | None:
        """The last that is finite."""
        return None if self.first is None else Point(*self._last)

    @property
    def low(self) -> Point | None:
        """The lowest."""
        return min((bucket.low for bucket in self._buckets), key=lambda point: point.value, default=None)

    @property
    def high(self) -> Point | None:
        """The highest."""
        return max((bucket.high for bucket in self._buckets), key=lambda point: point.value, default=None)

    @property
    def is_thinned(self) -> bool:
        """Whether fewer points are shown than were recorded."""
        return self._size > 1

    def pieces(self) -> Iterator[list[Point]]:
        """The points of each piece, in order of their steps."""
        # Both ends of a curve are looked at most, and need not be extremes.
        piece: list[Point] = [] if self.first is None else [self.first]
        number = 0
        for bucket in self._buckets:
            if bucket.piece != number and piece:
                yield piece
                piece = []
            number = bucket.piece
            points = sorted({bucket.low, bucket.high}, key=lambda point: point.step)
            piece += [point for point in points if point not in piece[-1:]]
        if piece:
            last = self.last
            yield [*piece, last] if last is not None and last.step > piece[-1].step else piece

    def bands(self) -> list[list[Band]]:
        """Of a thinned curve: mean, lowest and highest of neighbouring values, by piece."""
        found: dict[int, list[Band]] = {}
        for bucket in self._buckets:
            band = Band(bucket.mean, bucket.low.value, bucket.high.value)
            found.setdefault(bucket.piece, []).append(band)
        return list(found.values())

    def lines(self) -> list[list[Point]]:
        """What is drawn as a line: every value, or the means of neighbouring ones."""
        if not self.is_thinned:
            return list(self.pieces())
        return [[band.mean for band in piece] for piece in self.bands()]

    def _thin(self) -> None:
        """Halve the buckets. A run with more restarts than buckets has its pieces joined."""
        self._size *= 2
        joins_pieces = self._buckets[-1].piece > MOST_BUCKETS // 2
        halved: list[_Bucket] = []
        joined = True
        for bucket in self._buckets:
            if not joined and (joins_pieces or bucket.piece == halved[-1].piece):
                halved[-1].join(bucket)
                joined = True
            else:
                halved.append(bucket)
                joined = False
        self._buckets = halved
        self._filled = self._size


def kept_and_repeated(pieces: list[list[Point]]) -> tuple[list[list[Point]], list[list[Point]]]:
    """Pieces whose steps count, and those that a later piece did again."""
    kept: list[list[Point]] = []
    repeated: list[list[Point]] = []
    begins = math.inf
    for piece in reversed(pieces):
        stays = [point for point in piece if point.step < begins]
        # One point more, so that the two lines meet.
        again = piece[max(0, len(stays) - 1) :] if len(stays) < len(piece) else []
        kept.insert(0, stays)
        repeated.insert(0, again)
        begins = min(begins, piece[0].step)
    return [piece for piece in kept if piece], [piece for piece in repeated if piece]
