"""Where the time of a run went, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_train.rundir.format_amounts import clock
from dist_train.rundir.times.time_parts import PARTS

_NAMES = {
    "data_wait": "data wait",
    "communication": "communication (exposed)",
    "save_stall": "save stall",
    "lost": "lost to a crash",
}


def goodput_text(time: Mapping[str, Any]) -> str:
    """`61.0 % (45.2 % with the queue) of 3:12 in 2 attempts`; without the queue where there was none.

    Args:
        time: the record of a RunTime.
    """
    queue, with_queue = time["total"]["queue"], ""
    if queue is None:
        with_queue = " (queue not known)"
    elif queue:
        with_queue = f" ({_percent(time['goodput_with_queue'])} with the queue)"
    attempts = len(time["attempts"])
    count = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    return f"{_percent(time['goodput'])}{with_queue} of {clock(time['wall_s'])} in {count}"


def parts_text(time: Mapping[str, Any]) -> str:
    """`compute 61.0 %, …; not known: data wait`: shares of the whole time, the largest first."""
    total, wall_s = time["total"], time["wall_s"] or 1.0
    known = [part for part in PARTS if total[part]]
    shown = [f"{part_name(p)} {_percent(total[p] / wall_s)}" for p in sorted(known, key=lambda p: -total[p])]
    unknown = [part_name(part) for part in PARTS if total[part] is None]
    return ", ".join(shown) + (f"; not known: {', '.join(unknown)}" if unknown else "")


def part_name(part: str) -> str:
    """How a part is called in texts."""
    return _NAMES.get(part, part)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
