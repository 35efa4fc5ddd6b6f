"""Scales with round ticks, for any finite values."""

from __future__ import annotations

import math

import pytest

from dist_train.reports.axis import figure, place_scale, seconds, value_scale


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ((0.1, 2.3), (0.0, 1.0, 2.0, 3.0)),
        ((5.0, 5.0), (4.5, 4.75, 5.0, 5.25, 5.5)),
        ((0.0, 0.0), (-1.0, -0.5, 0.0, 0.5, 1.0)),
        ((1e-5, 1.0), (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
    ],
)
def test_ticks_are_round(values: tuple[float, ...], ticks: tuple[float, ...]) -> None:
    assert value_scale(values).ticks == pytest.approx(ticks)


@pytest.mark.parametrize(
    "values",
    [
        (-1.7e308, 1.7e308),
        (5e-324, 1.0),
        (1e300, 1.0001e300),
        (1.0, 1.0 + 2e-16),
        (-3.0, 1e9),
        (1e-300, 1e300),
    ],
)
def test_every_finite_value_has_a_place(values: tuple[float, float]) -> None:
    scale = value_scale(values)
    assert all(-0.001 <= scale.place(value) <= 1.001 for value in values), scale
    assert len(scale.ticks) < 20
    assert all(map(math.isfinite, scale.ticks))


def test_times_have_ticks_of_a_clock() -> None:
    assert place_scale((0, 7300), times=True).ticks == (0, 1800, 3600, 5400, 7200)
    assert place_scale((3, 3)).place(3) == 0.5


def test_figures_are_short() -> None:
    assert [figure(value) for value in (0.31214, 12400, 1.25e8, math.inf, -3)] == [
        "0.3121",
        "12,400",
        "1.25e+08",
        "inf",
        "-3",
    ]
    assert [seconds(value) for value in (0.0153, 2.31, 750)] == ["15.3 ms", "2.31 s", "12:30"]
