"""Interleaved rounds, medians with 95 % intervals, ratios of the same round, aims, and the record of a run.

Every script here measures by these, and writes its rows with `--record FILE` for `benchmarks/table.py`.
Nothing is asserted: a missed aim is printed as a miss.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

# With fewer rounds the order statistics of a 95 % interval are close to the smallest and the largest value.
ROUNDS = 20


@dataclass(frozen=True)
class Aim:
    """What a ratio should reach: the median at most, or the lower end of its interval at least, so much."""

    at_most: float | None = None
    at_least: float | None = None

    def met(self, median: float, low: float) -> bool:
        """Whether a measured ratio reaches it."""
        if self.at_most is not None and median > self.at_most:
            return False
        return self.at_least is None or low >= self.at_least

    def __str__(self) -> str:
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return "" if self.at_least is None else f"lower end >= {self.at_least:g}"


@dataclass(frozen=True)
class Row:
    """One line of the table: a case's values, and its ratio to the base of the same round, if any."""

    benchmark: str
    measured: str
    case: str
    unit: str
    rounds: int
    median: float
    low: float
    high: float
    base: str = ""
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    aim: str = ""
    met: bool | None = None

    def text(self) -> str:
        """The line as the scripts print it."""
        line = f"  {self.case:<28} {_short(self.median):>9} {self.unit:<8}"
        line += f" [{_short(self.low)} .. {_short(self.high)}] n={self.rounds}"
        if self.ratio is not None and self.ratio_low is not None and self.ratio_high is not None:
            line += f"   x {self.base}: {self.ratio:.3f} [{self.ratio_low:.3f} .. {self.ratio_high:.3f}]"
        if self.aim:
            line += f"   aim {self.aim}: {'met' if self.met else 'MISSED'}"
        return line


def interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics that covers the median; no distribution is assumed."""
    ordered, n = sorted(values), len(values)
    tail, skipped = 0.5**n, 0
    while 2 * (tail + math.comb(n, skipped + 1) * 0.5**n) <= 1 - confidence:
        skipped += 1
        tail += math.comb(n, skipped) * 0.5**n
    return ordered[skipped], ordered[n - 1 - skipped]


def rotated(names: Sequence[str], number: int) -> list[str]:
    """The order of a round: each begins with another case, so that none is always first."""
    start = number % len(names)
    return [*names[start:], *names[:start]]


def interleaved(
    cases: Mapping[str, Callable[[], float | None]], rounds: int
) -> dict[str, list[float | None]]:
    """Run every case once in each round; a case gives its value, or None where it did not end well."""
    found: dict[str, list[float | None]] = {name: [] for name in cases}
    for number in range(rounds):
        for name in rotated(list(cases), number):
            found[name].append(cases[name]())
    return found


def row(
    benchmark: str,
    measured: str,
    case: str,
    values: Sequence[float | None],
    unit: str,
    base: tuple[str, Sequence[float | None]] | None = None,
    aim: Aim | None = None,
    inverse: bool = False,
    value_aim: Aim | None = None,
) -> Row:
    """Summarise one case; `inverse` gives base / case, which is a ratio of speeds where the values are times.

    `aim` is of the ratio, `value_aim` of the values themselves, where there is no base.

    Rounds in which the case has no value are left out, and out of the ratio also those without a base.
    """
    known = [value for value in values if value is not None]
    if not known:
        nan = math.nan
        return Row(benchmark, measured, case, unit, 0, nan, nan, nan)
    low, high = interval(known)
    median = statistics.median(known)
    plain = Row(benchmark, measured, case, unit, len(known), median, low, high)
    if value_aim is not None:
        plain = replace(plain, aim=str(value_aim), met=value_aim.met(median, low))
    if base is None:
        return plain
    pairs = [(a, b) for a, b in zip(values, base[1], strict=True) if a is not None and b is not None]
    if not pairs:
        return plain
    ratios = [b / a if inverse else a / b for a, b in pairs]
    ratio, (ratio_low, ratio_high) = statistics.median(ratios), interval(ratios)
    met = None if aim is None else aim.met(ratio, ratio_low)
    return Row(
        **{name: value for name, value in asdict(plain).items() if name not in _OF_A_RATIO},
        base=base[0],
        ratio=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        aim="" if aim is None else str(aim),
        met=met,
    )


_OF_A_RATIO = ("base", "ratio", "ratio_low", "ratio_high", "aim", "met")


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the straight line through the logarithms, by least squares; nan for fewer than two points."""
    logs = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len(logs) < 2:
        return math.nan
    x_mean, y_mean = (statistics.fmean(axis) for axis in zip(*logs, strict=True))
    return sum((x - x_mean) * (y - y_mean) for x, y in logs) / sum((x - x_mean) ** 2 for x, _ in logs)


def curve_name(exponent: float) -> str:
    """What growth with such an exponent is called."""
    if math.isnan(exponent):
        return "not known"
    if abs(exponent) <= 0.15:
        return "constant"
    if exponent < 0:
        return "falling"
    if exponent < 0.85:
        return "less than linear"
    return "linear" if exponent <= 1.15 else "MORE than linear"


def growth(benchmark: str, measured: str, values: Mapping[int, Sequence[float | None]]) -> Row:
    """The row of a curve over sizes: the slope of the logarithms in each round, and what it is called."""
    rounds = zip(*values.values(), strict=True)
    curves = [
        [(size, one) for size, one in zip(values, each, strict=True) if one is not None] for each in rounds
    ]
    exponents = [one for curve in curves if not math.isnan(one := slope(curve))]
    name = curve_name(statistics.median(exponents) if exponents else math.nan)
    return row(benchmark, measured, f"slope: {name}", exponents, "log/log")


def add_arguments(parser: argparse.ArgumentParser, rounds: int = ROUNDS) -> None:
    """The options that every script has."""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds, default {rounds}")
    parser.add_argument("--record", type=Path, help="also write the rows to this file, as JSON lines")


def show(rows: Sequence[Row], record: Path | None) -> None:
    """Print rows under the heading of what they measure, and append them to the record."""
    heading = ""
    for each in rows:
        if each.measured != heading:
            heading = each.measured
            print(f"{each.benchmark}: {heading}; median [95 % interval of the median]", flush=True)
        print(each.text(), flush=True)
    if record is not None:
        with record.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(each)) + "\n" for each in rows)


def _short(value: float) -> str:
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
