"""A curve as one line of text."""

from __future__ import annotations

from collections.abc import Sequence

from dist_train.reports.curve import Point

_LEVELS = "▁▂▃▄▅▆▇█"
WIDTH = 32


def sparkline(points: Sequence[Point], last_step: float, low: float, high: float) -> str:
    """The last value in each of equal intervals of steps, or of one before; blank outside the curve.

    Args:
        last_step: the end of the line; common to the curves that are compared, as `low` and `high` are.
    """
    places: list[Point | None] = [None] * WIDTH
    for point in points:
        place = WIDTH - 1 if last_step <= 0 else int((point.step / last_step) * WIDTH)
        places[max(0, min(WIDTH - 1, place))] = point
    end = max((place for place, point in enumerate(places) if point is not None), default=-1)
    text, level = "", " "
    for found in places[: end + 1]:
        level = level if found is None else _level(found.value, low, high)
        text += level
    return text


def _level(value: float, low: float, high: float) -> str:
    share = 0.5 if high <= low else (value / 2 - low / 2) / (high / 2 - low / 2)
    return _LEVELS[max(0, min(len(_LEVELS) - 1, int(share * len(_LEVELS))))]
