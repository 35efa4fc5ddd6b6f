"""Where the time went, as tables with bars: by attempt, and by rank as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from dist_train.reports.attempts import Attempt
from dist_train.reports.axis import elapsed, percent
from dist_train.reports.markup import Child, Markup, joined, table, tag
from dist_train.reports.rank_times import Seconds
from dist_train.rundir.display_number import display_number
from dist_train.rundir.format_amounts import clock
from dist_train.rundir.times.time_parts import PARTS
from dist_train.rundir.times.time_text import part_name

# Parts that a bar shows in one colour, in its order from left to right.
GROUPS = (
    ("step", ("compute", "communication")),
    ("data wait", ("data_wait",)),
    ("evaluation", ("evaluation",)),
    ("save stall", ("save_stall",)),
    ("start and end", ("start", "import", "membership", "restore", "stopping")),
    ("queue", ("queue",)),
    ("lost to a crash", ("lost",)),
    ("idle", ("idle",)),
)
# What a rank's clock counts: the queue and lost steps are known from the events only.
_RANK_PARTS = tuple(part for part in PARTS if part not in ("queue", "lost"))
# A rank is outlined where a part of its time is more than the others' by this share of it.
_ODD_SHARE = 0.05


def attempt_bar(attempt: Attempt, began: float, whole_s: float, now: float) -> Markup:
    """When an attempt ran, from the run's first submission to its end."""

    def place(at: float) -> str:
        return f"{100 * min(1.0, max(0.0, (at - began) / whole_s)):.2f}%"

    ended = now if attempt.ended is None else attempt.ended
    length = min(1.0, max(0.0, (ended - attempt.began) / whole_s))
    bar = tag("span", "", class_=attempt.how, style=f"left:{place(attempt.began)};width:{100 * length:.2f}%")
    failed = attempt.failed_at
    tick = None if failed is None else tag("span", "", class_="failure", style=f"left:{place(failed)}")
    return tag("span", bar, tick, class_="track", aria_hidden="true")


def time_table(time: Mapping[str, Any]) -> Markup:
    """Parts of each attempt and of the whole, as bars and as seconds.

    Args:
        time: the record of a RunTime.
    """
    known = [part for part in PARTS if time["total"][part]]
    rows = [("all", time["wall_s"], time["total"])] if len(time["attempts"]) > 1 else []
    rows += [(str(display_number(one["attempt"])), one["wall_s"], one) for one in time["attempts"]]
    heads: list[Child] = ["attempt", "time", *map(_part_head, known)]
    body = [
        [name, _bar_cell(parts, whole), *(_cell(parts[part], whole) for part in known)]
        for name, whole, parts in rows
    ]
    return joined(
        [_legend(), table(heads, body, caption="Seconds of each attempt, as rank 0 has spent them")]
    )


def rank_table(ranks: Mapping[int, Seconds]) -> Markup:
    """A heat map: each rank's share of time by part; outlined where a rank is unlike the others."""
    known = [part for part in _RANK_PARTS if any(seconds[part] for seconds in ranks.values())]
    usual = {part: median(seconds[part] for seconds in ranks.values()) for part in known}
    body = []
    for rank, seconds in ranks.items():
        whole = sum(seconds.values()) or 1.0
        odd = {p for p in known if len(ranks) > 1 and seconds[p] - usual[p] > _ODD_SHARE * whole}
        cells = [_cell(seconds[part], whole, odd=part in odd) for part in known]
        body.append([str(rank), elapsed(whole), *cells])
    return table(
        ["rank", "time", *map(_part_head, known)],
        body,
        caption="Time of each rank by part, over all attempts; steps that were lost and done again included. "
        "Outlined: 5 % of its time or more above the ranks' median",
    )


def _part_head(part: str) -> Markup:
    return tag("th", part_name(part), scope="col", class_="part")


def _legend() -> Markup:
    keys = [
        tag("span", tag("span", "", class_=f"swatch p{place}", aria_hidden="true"), name, class_="key")
        for place, (name, _) in enumerate(GROUPS)
    ]
    return tag("p", *keys, class_="legend")


def _bar_cell(parts: Mapping[str, Any], whole: float) -> Markup:
    bars = []
    for place, (_, names) in enumerate(GROUPS):
        share = sum(parts[name] or 0.0 for name in names) / (whole or 1.0)
        if share > 0:
            bars.append(tag("span", "", class_=f"p{place}", style=f"width:{100 * share:.2f}%"))
    return tag("td", clock(whole), tag("span", *bars, class_="stack", aria_hidden="true"))


def _cell(seconds: float | None, whole: float, odd: bool = False) -> Markup:
    if seconds is None:
        return tag("td", "not known", class_="quiet")
    if not seconds:
        return tag("td", "-", class_="heat", style="--share:0%")
    share = seconds / (whole or 1.0)
    texts = percent(share), tag("small", elapsed(seconds))
    kind = "heat odd" if odd else "heat"
    return tag("td", *texts, class_=kind, style=f"--share:{min(100.0, 100 * share):.0f}%")


def slowest_text(counts: Mapping[int, int], most: int = 5) -> str | None:
    """`rank 3 in 61 % of 460 records, rank 0 in 20 %`; None without records."""
    whole = sum(counts.values())
    if not whole:
        return None
    first: Sequence[tuple[int, int]] = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]
    named = [f"rank {rank} in {percent(count / whole)}" for rank, count in first]
    named[0] += f" of {whole:,} records"
    return ", ".join(named)
