"""A curve in bounded memory: its ends and extremes stay, repeated steps are told apart."""

from __future__ import annotations

import math

from dist_train.reports.curve import MOST_BUCKETS, Curve, Point, kept_and_repeated


def points(curve: Curve) -> list[Point]:
    return [point for piece in curve.pieces() for point in piece]


def test_a_short_curve_is_shown_whole() -> None:
    curve = Curve()
    for step in range(1, 301):
        curve.add(step, step / 10, float(step % 7))
    assert [point.step for point in points(curve)] == list(range(1, 301))
    assert not curve.is_thinned


def test_a_long_curve_keeps_its_ends_and_its_extremes() -> None:
    curve = Curve()
    for step in range(100_000):
        curve.add(step, step, {40_001: -5.0, 77_777: 9.0, 99_999: 0.25}.get(step, math.sin(step)))
    shown = points(curve)
    assert curve.is_thinned
    assert len(shown) <= 4 * MOST_BUCKETS + 1
    assert (shown[0].step, shown[-1]) == (0, Point(99_999, 99_999, 0.25))
    assert Point(40_001, 40_001, -5.0) in shown
    assert Point(77_777, 77_777, 9.0) in shown
    assert [point.step for point in shown] == sorted(point.step for point in shown)


def test_steps_that_were_done_again_do_not_count() -> None:
    curve = Curve()
    for step in (10, 20, 30, 40, 30, 40, 50):
        curve.add(step, 0.0, 1.0)
    kept, repeated = kept_and_repeated(curve.lines())
    assert [[point.step for point in piece] for piece in kept] == [[10, 20], [30, 40, 50]]
    assert [[point.step for point in piece] for piece in repeated] == [[20, 30, 40]]


def test_values_that_are_not_finite_are_counted_and_not_drawn() -> None:
    curve = Curve()
    for step, value in enumerate((1.0, math.nan, 2.0, math.inf)):
        curve.add(step, 0.0, value)
    assert [point.value for point in points(curve)] == [1.0, 2.0]
    assert (curve.count, curve.not_finite, curve.first_not_finite) == (4, 2, 1)


def test_very_many_restarts_are_joined() -> None:
    curve = Curve()
    for _ in range(20_000):
        curve.add(1, 0.0, 1.0)
        curve.add(2, 0.0, 2.0)
    assert len(points(curve)) <= 4 * MOST_BUCKETS + 1
    assert (curve.count, curve.low, curve.high) == (40_000, Point(1, 0.0, 1.0), Point(2, 0.0, 2.0))


def test_a_thinned_curve_is_drawn_as_its_means_within_a_band() -> None:
    curve = Curve()
    for step in range(64_000):
        curve.add(step, step, 1.0 + step % 2)
    [bands] = curve.bands()
    assert len(bands) <= 2 * MOST_BUCKETS
    assert {(band.low, band.high) for band in bands} == {(1.0, 2.0)}
    assert all(abs(point.value - 1.5) < 0.02 for point in curve.lines()[0])


def test_the_mean_of_values_whose_sum_is_no_float_is_one() -> None:
    curve = Curve()
    for step in range(10_000):
        curve.add(step, step, 1.7e308)
    assert all(math.isfinite(point.value) for point in curve.lines()[0])
