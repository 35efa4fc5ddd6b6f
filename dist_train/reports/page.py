"""The report of a run: one HTML page that needs nothing else, neither network nor script."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from dist_train import __version__
from dist_train.reports import page_sections
from dist_train.reports.markup import Markup, tag
from dist_train.reports.page_style import STYLE
from dist_train.reports.run_records import RunRecords

# By this a report is told from other files before one is written over it.
GENERATOR = "dist-train report"
# Whatever a record holds, the page loads nothing and runs nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def render_page(records: RunRecords, status: Mapping[str, Any], now: float | None = None) -> str:
    """The page as text.

    Args:
        status: what `status --json` says; without `phase` nobody could be asked, and `detail` says why.
        now: the wall clock.
    """
    now = time.time() if now is None else now
    phase = str(status.get("phase", "unknown"))
    sections = [
        lambda: page_sections.tiles(records),
        lambda: page_sections.failure_box(records.failure, phase == "failed"),
        lambda: page_sections.curves(records),
        lambda: page_sections.time_spent(records),
        lambda: page_sections.attempts(records, now),
        lambda: page_sections.checkpoints(records),
        lambda: page_sections.config(records),
        lambda: page_sections.environment(records),
    ]
    body = tag(
        "main",
        _header(records, status, phase),
        *[_note(problem) for problem in records.problems],
        *map(_made, sections),
        _footer(records, now),
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        tag("title", f"{records.name}: {phase}"),
        tag("style", Markup(STYLE)),
    )
    return "<!DOCTYPE html>\n" + tag("html", head, tag("body", body), lang="en") + "\n"


def _made(section: Callable[[], Markup | None]) -> Markup | None:
    """The section; a record with values of other types than ours costs no other section."""
    try:
        return section()
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError) as error:
        return _note(f"A section could not be made from the records: {type(error).__name__}: {error}")


def _note(text: str) -> Markup:
    return tag("p", text, class_="box note", role="note")


def _header(records: RunRecords, status: Mapping[str, Any], phase: str) -> Markup:
    spec, source, detail = records.spec, status.get("source"), status.get("detail")
    nodes, procs = spec.get("nodes"), spec.get("procs_per_node")
    ranks = f"{nodes} node(s) x {procs} processes on {spec.get('device')}" if nodes and procs else None
    facts = [str(one) for one in (spec.get("run_id"), ranks, records.job.get("launcher")) if one]
    said = ": ".join(str(part) for part in (source, detail) if part) if detail != phase else ""
    return tag(
        "header",
        tag("h1", records.name, " ", tag("span", phase, class_=f"phase {_phase_class(phase)}")),
        tag("p", " · ".join(facts)) if facts else None,
        tag("p", said, class_="quiet") if said else None,
    )


def _phase_class(phase: str) -> str:
    return phase if phase in ("done", "failed", "running", "stopped") else "quiet"


def _footer(records: RunRecords, now: float) -> Markup:
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return tag(
        "footer",
        tag("p", f"Made by dist-train {__version__} at {at} from ", tag("code", str(records.run.path)), "."),
        tag("p", "All times are UTC."),
    )
