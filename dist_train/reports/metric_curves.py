"""metrics.jsonl as curves: read once, line by line, in memory that does not grow with the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from dist_train.reports.curve import Curve
from dist_train.rundir import metric_text
from dist_train.rundir.records import parse_line, raw_lines

# Names of curves; a script that logs a name per layer has more.
MOST_NAMES = 60
# What the trainer measures beside loss and metrics.
MEASURED = (
    *("lr", "samples_per_s", "step_s", "data_s", "compute_s", "data_wait"),
    *("memory_bytes", "slowest_s", "others_s"),
)
Key = tuple[str, str]


@dataclass
class MetricCurves:
    """The curves of a run and what else its metrics.jsonl says.

    Attributes:
        curves: by (kind, name); kind is train, eval, or what a callback logs.
        records: lines that were read.
        unreadable: lines that are none, without a torn last one.
        torn: whether the last line was cut off: its writer was killed, or writes it now.
        newest: the last record of each kind.
        began: the wall clock of second 0.
        slowest: how often each rank was the slowest.
        names_left_out: names that have no curve, as there were too many.
    """

    curves: dict[Key, Curve] = field(default_factory=dict)
    records: int = 0
    unreadable: int = 0
    torn: bool = False
    newest: dict[str, dict[str, Any]] = field(default_factory=dict)
    began: float | None = None
    ended_s: float = 0.0
    slowest: Counter[int] = field(default_factory=Counter)
    names_left_out: set[str] = field(default_factory=set)

    def of(self, name: str) -> dict[str, Curve]:
        """The curves of a name, by kind; training first."""
        found = {kind: curve for (kind, named), curve in self.curves.items() if named == name}
        return dict(sorted(found.items(), key=lambda item: (item[0] != "train", item[0])))

    @property
    def figure_names(self) -> list[str]:
        """Loss first, then metrics and what scripts and callbacks logged."""
        names = dict.fromkeys(name for _, name in self.curves if name not in MEASURED)
        return sorted(names, key=lambda name: name != "loss")

    @property
    def is_thinned(self) -> bool:
        """Whether a curve shows fewer points than were recorded."""
        return any(curve.is_thinned for curve in self.curves.values())

    def add(self, record: dict[str, Any]) -> None:
        """Add the next record of the file."""
        self.records += 1
        kind = str(record.get("kind", "train"))
        self.newest[kind] = record
        step = _number(record.get("step"))
        at_s = self._seconds(record.get("time"))
        if step is None or not math.isfinite(step):
            step = float(self.records)
        for name, value in metric_text.measured(record).items():
            self._add((kind, name), step, at_s, value)
        if kind == "train":
            for name in MEASURED:
                self._add((kind, name), step, at_s, record.get(name))
            slowest = record.get("slowest_rank")
            if isinstance(slowest, int):
                self.slowest[slowest] += 1

    def _add(self, key: Key, step: float, at_s: float, value: Any) -> None:
        found = _number(value)
        if found is None:
            return
        curve = self.curves.get(key)
        if curve is None:
            if len(self.curves) >= MOST_NAMES + len(MEASURED):
                self.names_left_out.add(key[1])
                return
            curve = self.curves[key] = Curve()
        curve.add(step, at_s, found)

    def _seconds(self, time: Any) -> float:
        """Seconds since the beginning; of a record without a time those of the one before."""
        try:
            at = datetime.fromisoformat(time).timestamp()
        except (TypeError, ValueError):
            return self.ended_s
        if self.began is None:
            self.began = at
        self.ended_s = at - self.began
        return self.ended_s


def read_curves(path: Path, began: float | None = None) -> MetricCurves:
    """Read the whole file; what cannot be read is counted.

    Args:
        began: the wall clock of second 0; None: the first record's.

    Raises:
        OSError: the file is there and cannot be read.
    """
    found = MetricCurves(began=began)
    for line in raw_lines(path):
        record = parse_line(line)
        if record is not None:
            found.add(record)
        elif not line.endswith(b"\n"):
            found.torn = True
        elif line.strip():
            found.unreadable += 1
    return found


def figures_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Loss, metrics and what a script logged, of one record."""
    found = {name: _number(value) for name, value in metric_text.measured(record).items()}
    return {name: value for name, value in found.items() if value is not None}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an int of hundreds of digits
        return math.inf if value > 0 else -math.inf
