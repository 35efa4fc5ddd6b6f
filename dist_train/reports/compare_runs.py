"""Runs beside each other: how each ended, last figures, speed, and what differs in config and versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dist_train.reports.curve import Curve, Point, kept_and_repeated
from dist_train.reports.metric_curves import figures_of
from dist_train.reports.run_records import RunRecords

# None: the run has no such value.
Values = tuple[Any, ...]
# What differs between any two runs, and says nothing.
_NOT_COMPARED = ("schema_version", "time")


@dataclass(frozen=True)
class ComparedCurve:
    """The curve of one name in each run, with what they have in common; None where a run has none.

    Args:
        last_step, low, high: over all runs.
    """

    kind: str
    name: str
    curves: tuple[Curve | None, ...]
    last_step: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """What is shown of several runs; each value is one per run.

    Args:
        summary: how each ended, its size, time and speed.
        figures: the last loss and metrics, by (kind, name).
        config: paths whose values are not equal in all runs.
        versions: entries of the fingerprint that are not equal in all runs.
        hashes: of the runs that are done.
    """

    summary: Mapping[str, Values]
    figures: Mapping[tuple[str, str], Values]
    config: Mapping[str, Values]
    versions: Mapping[str, Values]
    hashes: Mapping[str, Values]
    curves: tuple[ComparedCurve, ...]


def compare_runs(runs: Sequence[RunRecords]) -> Comparison:
    """Compare what their records say."""
    return Comparison(
        summary={name: tuple(of(run) for run in runs) for name, of in _SUMMARY.items()},
        figures=_figures(runs),
        config=_different(
            [{one.path: one.value for one in run.config if one.path != "name"} for run in runs]
        ),
        versions=_different([_versions(run) for run in runs]),
        hashes={name: tuple(_result(run, name) or None for run in runs) for name in _HASHES},
        curves=_curves(runs),
    )


_HASHES = ("weights_hash", "state_hash", "metrics_hash")


def _result(run: RunRecords, key: str) -> Any:
    return None if run.result is None else run.result.get(key)


def _ended(run: RunRecords) -> str:
    if run.result is not None:
        return "done"
    return run.attempts[-1].how if run.attempts else "not begun"


def _steps(run: RunRecords) -> Any:
    return _result(run, "steps") or run.metrics.newest.get("train", {}).get("step")


def _ranks(run: RunRecords) -> Any:
    nodes, procs = run.spec.get("nodes"), run.spec.get("procs_per_node")
    product = nodes * procs if isinstance(nodes, int) and isinstance(procs, int) else None
    return _result(run, "world_size") or product


def _speed(run: RunRecords) -> Any:
    newest = run.metrics.newest.get("train", {}).get("samples_per_s")
    return _result(run, "samples_per_s") or newest


def _restarts(run: RunRecords) -> int:
    return sum(attempt.how in ("restarted", "lost") for attempt in run.attempts)


def _time(key: str) -> Callable[[RunRecords], Any]:
    return lambda run: None if run.times is None else run.times[key]


_SUMMARY: dict[str, Callable[[RunRecords], Any]] = {
    "ended": _ended,
    "steps": _steps,
    "ranks": _ranks,
    "device": lambda run: run.spec.get("device"),
    "launcher": lambda run: run.job.get("launcher"),
    "attempts": lambda run: len(run.attempts) or None,
    "restarts": _restarts,
    "wall_s": _time("wall_s"),
    "goodput": _time("goodput"),
    "samples_per_s": _speed,
    "step_s": lambda run: run.metrics.newest.get("train", {}).get("step_s_mean"),
    "memory_bytes": lambda run: _high(run, "memory_bytes"),
}


def _high(run: RunRecords, name: str) -> float | None:
    curve = run.metrics.curves.get(("train", name))
    return None if curve is None or curve.high is None else curve.high.value


def _figures(runs: Sequence[RunRecords]) -> dict[tuple[str, str], Values]:
    found = [
        {
            (kind, name): value
            for kind, record in run.metrics.newest.items()
            for name, value in figures_of(record).items()
        }
        for run in runs
    ]
    keys = dict.fromkeys(key for figures in found for key in figures)
    # Evaluations first: what is compared of two runs is what they have reached.
    ordered = sorted(keys, key=lambda key: (key[0] != "eval", key[0] != "train", key[1] != "loss"))
    return {key: tuple(figures.get(key) for figures in found) for key in ordered}


def _different(runs: Sequence[Mapping[str, Any]]) -> dict[str, Values]:
    keys = dict.fromkeys(key for one in runs for key in one)
    return {
        key: values
        for key in keys
        if any(key not in one for one in runs) or len({repr(one[key]) for one in runs}) > 1
        for values in [tuple(one.get(key) for one in runs)]
    }


def _versions(run: RunRecords) -> dict[str, Any]:
    devices = sorted({device.name for device in run.devices})
    known = {key: value for key, value in run.fingerprint.items() if key not in _NOT_COMPARED}
    # The config's hash says less than its differences do.
    known.pop("config", None)
    return {**known, **({"gpus": ", ".join(devices)} if devices else {})}


def _curves(runs: Sequence[RunRecords]) -> tuple[ComparedCurve, ...]:
    keys = dict.fromkeys(key for run in runs for key in run.metrics.curves)
    named = [key for key in keys if any(key[1] in run.metrics.figure_names for run in runs)]
    found = []
    for kind, name in sorted(named, key=lambda key: (key[1] != "loss", key[0] != "train")):
        curves = tuple(run.metrics.curves.get((kind, name)) for run in runs)
        points = [p for curve in curves if curve is not None for p in (curve.low, curve.high) if p]
        ends = [curve.last.step for curve in curves if curve is not None and curve.last is not None]
        if points:
            values = [point.value for point in points]
            found.append(ComparedCurve(kind, name, curves, max(ends), min(values), max(values)))
    return tuple(found)


def points_that_count(curve: Curve) -> list[Point]:
    """The points of a curve in order of their steps, without those of steps that were done again."""
    kept, _ = kept_and_repeated(curve.lines())
    return [point for piece in kept for point in piece]
