"""A curve as one line of text, on a scale that several curves share."""

from __future__ import annotations

from dist_train.reports.curve import Point
from dist_train.reports.sparkline import WIDTH, sparkline


def line(*values: tuple[float, float], last_step: float = 32.0) -> str:
    return sparkline([Point(step, 0.0, value) for step, value in values], last_step, 0.0, 8.0)


def test_each_interval_shows_its_last_value() -> None:
    assert line((0, 0.0), (1, 8.0), (1.5, 4.0), (2, 7.0)) == "▁▅█"


def test_a_value_stays_until_the_next_one_and_ends_with_its_curve() -> None:
    assert line((2, 0.0), (5, 8.0)) == "  ▁▁▁█"
    assert len(line((32, 1.0))) == WIDTH


def test_curves_without_points_or_range_have_a_line_too() -> None:
    assert line() == ""
    assert sparkline([Point(0, 0.0, 3.0)], 0.0, 3.0, 3.0) == " " * (WIDTH - 1) + "▅"
