"""Axes of charts: scales with round ticks, and figures as short text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dist_train.rundir.format_amounts import clock, size

Format = Callable[[float], str]
# Values of one sign that differ by more than this are shown on a logarithmic axis.
_LOGARITHMIC_FROM = 1000.0
_SMALLEST, _LARGEST = 1e-300, 1.7e308


@dataclass(frozen=True)
class Scale:
    """From values to 0 .. 1; logarithmic where `log` says so.

    Args:
        ticks: values to be marked.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end."""
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(number, _SMALLEST)) for number in (value, low, high))
        # Halves: the difference of two large numbers may not be a finite one.
        whole = high / 2 - low / 2
        return min(1.0, max(0.0, (value / 2 - low / 2) / whole)) if whole else 0.5


def byte_scale(values: Iterable[float]) -> Scale:
    """A scale from zero to these values, with ticks that are round in KiB, MiB, …"""
    found = [max(0.0, value) for value in values]
    unit = 1024.0 ** math.floor(math.log(max(*found, 1.0), 1024))
    scale = value_scale([value / unit for value in found], from_zero=True)
    return Scale(scale.low * unit, scale.high * unit, tuple(tick * unit for tick in scale.ticks))


def value_scale(values: Iterable[float], from_zero: bool = False) -> Scale:
    """A scale around these values (finite, at least one)."""
    found = list(values)
    low, high = min(found), max(found)
    if low > 0 and high / low > _LOGARITHMIC_FROM and not from_zero:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        every = max(1, math.ceil((last - first) / 5))
        ticks = tuple(10.0**power for power in range(first, last + 1, every) if -300 <= power <= 300)
        return Scale(10.0 ** max(-300, first), 10.0 ** min(300, last), ticks, log=True)
    low = min(0.0, low) if from_zero else low
    if low == high:
        spread = abs(low) / 10 or 1.0
        low, high = max(-_LARGEST, low if from_zero else low - spread), min(_LARGEST, high + spread)
    ticks = _ticks(low, high, 4)
    return Scale(min(low, ticks[0]), max(high, ticks[-1]), ticks)


def place_scale(values: Iterable[float], times: bool = False) -> Scale:
    """A scale from the first to the last step, or second."""
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        spread = max(0.5, abs(low) * 1e-6)
        low, high = max(-_LARGEST, low - spread), min(_LARGEST, high + spread)
    steps = _round_times(high - low) if times else None
    ticks = _ticks(low, high, 5, steps)
    return Scale(low, high, tuple(tick for tick in ticks if low <= tick <= high))


def _ticks(low: float, high: float, wanted: int, step: float | None = None) -> tuple[float, ...]:
    """Round values at equal distances, the first at or below `low`, the last at or above `high`."""
    span = high / wanted - low / wanted
    if not math.isfinite(span) or span <= 0:
        return (low, high)
    if step is None:
        power = 10.0 ** math.floor(math.log10(span))
        step = next((power * m for m in (1, 2, 2.5, 5, 10) if power * m >= span), power * 10)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    found = tuple(tick for number in range(first, last + 1) if math.isfinite(tick := number * step))
    return found or (low, high)


def _round_times(span_s: float) -> float:
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200)
    days = math.ceil(span_s / 5 / 86400) * 86400.0
    fractions = [m * 10.0**power for power in range(-6, 0) for m in (1, 2, 5)]
    return next((float(step) for step in (*fractions, *steps) if step >= span_s / 5), days)


def figure(value: float) -> str:
    """A figure in at most four digits: `0.3121`, `1.2e+08`, `12,400`."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def step_label(step: float) -> str:
    """`4,000`, `2.5 M`."""
    return f"{step / 1e6:.4g} M" if abs(step) >= 1e6 else figure(step)


def percent(share: float) -> str:
    """`12.5 %`."""
    return f"{100 * share:.1f} %"


def percent_tick(share: float) -> str:
    """`20 %`, `0.25 %`."""
    return f"{100 * share:.3g} %"


def seconds(value: float) -> str:
    """`15 ms`, `2.31 s`, `12:30`."""
    if abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if abs(value) < 60 else clock(value)


def elapsed(value: float) -> str:
    """The label of a moment: `5 s`, `12:30`."""
    return f"{value:.3g} s" if abs(value) < 60 else clock(value)


def byte_count(value: float) -> str:
    """`1.3 GiB`, `400 MiB`."""
    return size(value).replace(".0 ", " ")
