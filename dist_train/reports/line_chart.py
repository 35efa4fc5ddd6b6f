"""Curves as one SVG picture: by step or by time, with what it shows as text, and the values as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dist_train.reports.axis import (
    Format,
    Scale,
    byte_count,
    byte_scale,
    elapsed,
    figure,
    place_scale,
    step_label,
    value_scale,
)
from dist_train.reports.curve import Band, Curve, Point, kept_and_repeated
from dist_train.reports.markup import Child, Markup, details, joined, table, tag

Over = Literal["step", "time"]
WIDTH, HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 36
# Rows of a table behind a chart, over all its curves.
_MOST_ROWS = 60
# Single points are marked where there are few.
_MARKED = 40


@dataclass(frozen=True)
class Mark:
    """A moment that a chart marks: the start of an attempt, or a failure.

    Args:
        step: None where it is not known.
        at_s: seconds since the run's beginning.
        kind: `attempt` or `failure`: how it looks.
    """

    step: float | None
    at_s: float
    text: str
    kind: Literal["attempt", "failure"]


@dataclass(frozen=True)
class Chart:
    """What one chart shows.

    Args:
        curves: by the name that is shown; at most four are told apart by colour and dashes.
        form: of its values.
    """

    title: str
    curves: Mapping[str, Curve]
    form: Format = figure
    from_zero: bool = False


def render_chart(chart: Chart, marks: Sequence[Mark] = ()) -> Markup:
    """The chart by step and by time (of which the style sheet shows one), its text and its table."""
    drawn = {name: curve for name, curve in chart.curves.items() if curve.low is not None}
    heading = tag("h3", chart.title)
    if not drawn:
        text = tag("p", *_not_finite(chart), class_="quiet")
        return tag("section", heading, text, class_="chart")
    pictures = [_picture(chart, drawn, over, marks) for over in ("step", "time")]
    return tag(
        "section",
        heading,
        _legend(drawn),
        *pictures,
        *[tag("p", text, class_="warning") for text in _not_finite(chart)],
        details("Values", _table(chart)),
        class_="chart",
    )


def summary(chart: Chart) -> str:
    """What a chart shows, as text: for those who do not see it."""
    parts = []
    for name, curve in chart.curves.items():
        if curve.first is None or curve.last is None or curve.low is None or curve.high is None:
            parts.append(f"{name}: no finite value")
            continue
        first, last, low, high = (_at(chart, p) for p in (curve.first, curve.last, curve.low, curve.high))
        parts.append(f"{name}: {curve.count} values, from {first} to {last}, lowest {low}, highest {high}")
    return f"{chart.title}. {'; '.join(parts)}."


def _at(chart: Chart, point: Point) -> str:
    return f"{chart.form(point.value)} at step {figure(point.step)}"


def _not_finite(chart: Chart) -> list[str]:
    return [
        f"{name}: {curve.not_finite} of {curve.count} values are not finite, the first at step "
        f"{figure(curve.first_not_finite or 0)}; they are not drawn."
        for name, curve in chart.curves.items()
        if curve.not_finite
    ]


def _legend(drawn: Mapping[str, Curve]) -> Markup | None:
    if len(drawn) == 1:
        return None
    keys = [
        tag(
            "span",
            tag(
                "svg",
                tag("line", x1=0, y1=5, x2=24, y2=5, class_=f"line c{number}"),
                viewBox="0 0 24 10",
                aria_hidden="true",
            ),
            name,
            class_="key",
        )
        for number, name in enumerate(drawn)
    ]
    return tag("p", *keys, class_="legend")


def _picture(chart: Chart, drawn: Mapping[str, Curve], over: Over, marks: Sequence[Mark]) -> Markup:
    values = [point.value for curve in drawn.values() for point in (curve.low, curve.high) if point]
    across = place_scale(
        (_across(point, over) for curve in drawn.values() for piece in curve.pieces() for point in piece),
        times=over == "time",
    )
    up = byte_scale(values) if chart.form is byte_count else value_scale(values, chart.from_zero)
    label = "step" if over == "step" else "time since the first submission"
    lines = [_lines(curve, number, over, across, up) for number, curve in enumerate(drawn.values())]
    return tag(
        "svg",
        tag("title", summary(chart)),
        _axes(across, up, chart, over),
        *_marks(marks, over, across),
        *lines,
        tag("text", label, x=(_LEFT + WIDTH - _RIGHT) // 2, y=HEIGHT - 4, class_="label middle"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        class_=f"by-{over}",
    )


def _axes(across: Scale, up: Scale, chart: Chart, over: Over) -> Markup:
    form = elapsed if over == "time" else step_label
    parts = []
    for value in up.ticks:
        y = _y(value, up)
        parts.append(tag("line", x1=_LEFT, y1=y, x2=WIDTH - _RIGHT, y2=y, class_="grid"))
        parts.append(tag("text", chart.form(value), x=_LEFT - 6, y=f"{float(y) + 4:.1f}", class_="label end"))
    for value in across.ticks:
        x = _x(value, across)
        parts.append(tag("line", x1=x, y1=HEIGHT - _BOTTOM, x2=x, y2=HEIGHT - _BOTTOM + 4, class_="grid"))
        parts.append(tag("text", form(value), x=x, y=HEIGHT - _BOTTOM + 16, class_="label middle"))
    if up.log:
        parts.append(tag("text", "logarithmic", x=_LEFT + 4, y=_TOP + 10, class_="label"))
    return joined(parts)


def _marks(marks: Sequence[Mark], over: Over, across: Scale) -> Iterator[Markup]:
    for mark in marks:
        place = mark.step if over == "step" else mark.at_s
        if place is not None and across.low <= place <= across.high:
            x = _x(place, across)
            line = tag("line", x1=x, y1=_TOP, x2=x, y2=HEIGHT - _BOTTOM, class_=f"mark {mark.kind}")
            yield tag("g", tag("title", mark.text), line)


def _lines(curve: Curve, number: int, over: Over, across: Scale, up: Scale) -> Markup:
    kept, repeated = curve.lines(), list[list[Point]]()
    if over == "step":
        kept, repeated = kept_and_repeated(kept)
    bands = curve.bands() if curve.is_thinned else []
    drawn = [_band(piece, over, across, up, f"band b{number}") for piece in bands]
    drawn += [_line(piece, over, across, up, f"line c{number} repeated") for piece in repeated]
    drawn += [_line(piece, over, across, up, f"line c{number}") for piece in kept]
    return joined(drawn)


def _band(piece: Sequence[Band], over: Over, across: Scale, up: Scale, kind: str) -> Markup:
    places = [(_x(_across(band.mean, over), across), band) for band in piece]
    over_it = [f"{x},{_y(band.high, up)}" for x, band in places]
    under_it = [f"{x},{_y(band.low, up)}" for x, band in reversed(places)]
    return tag("path", d=f"M{' L'.join([*over_it, *under_it])} Z", class_=kind)


def _line(piece: Sequence[Point], over: Over, across: Scale, up: Scale, kind: str) -> Markup:
    places = [(_x(_across(point, over), across), _y(point.value, up)) for point in piece]
    dots = [tag("circle", cx=x, cy=y, r=2.5, class_=kind) for x, y in places if len(places) <= _MARKED]
    line = tag("polyline", points=" ".join(f"{x},{y}" for x, y in places), class_=kind)
    return joined([line if len(places) > 1 else None, *dots])


def _table(chart: Chart) -> Markup:
    most = max(2, _MOST_ROWS // len(chart.curves))
    rows: list[tuple[Child, ...]] = []
    left_out = False
    for name, curve in chart.curves.items():
        points = [point for piece in curve.pieces() for point in piece]
        every = -(-len(points) // most) if points else 1
        chosen = [*points[::every], *([points[-1]] if points and (len(points) - 1) % every else [])]
        left_out = left_out or len(chosen) < curve.count - curve.not_finite
        rows += [(name, figure(p.step), elapsed(p.at_s), chart.form(p.value)) for p in chosen]
    some = ", some of the values" if left_out else ""
    return table(("curve", "step", "time", "value"), rows, caption=f"{chart.title}{some}")


def _across(point: Point, over: Over) -> float:
    return point.step if over == "step" else point.at_s


def _x(value: float, across: Scale) -> str:
    return f"{_LEFT + across.place(value) * (WIDTH - _LEFT - _RIGHT):.1f}"


def _y(value: float, up: Scale) -> str:
    return f"{HEIGHT - _BOTTOM - up.place(value) * (HEIGHT - _TOP - _BOTTOM):.1f}"
