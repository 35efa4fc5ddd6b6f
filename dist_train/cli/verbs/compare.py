"""`dist-train compare`: runs beside each other in the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dist_train.cli.options.shell_complete import runs as complete_runs
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import number, render_table, size
from dist_train.cli.run.find_run import find_run
from dist_train.errors import ExitCode, UsageError
from dist_train.rundir import RunDir
from dist_train.rundir.format_amounts import clock

if TYPE_CHECKING:
    from dist_train.reports.compare_runs import ComparedCurve, Comparison

_KINDS = {"train": "training", "eval": "evaluation"}
# Of a value in a cell.
_LONGEST = 48
_MOST_CURVES = 12
# Points of a curve in --json.
_MOST_POINTS = 200


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train compare digits-1 digits-2",
        "dist-train compare digits-1 @last --json",
    ),
)
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...", shell_complete=complete_runs)
@json_option
def compare(runs: tuple[str, ...], as_json: bool) -> int:
    """Show RUNs beside each other: figures, speed, curves, and what differs in config and versions."""
    from dist_train.reports.compare_runs import compare_runs
    from dist_train.reports.run_records import read_records

    if len(runs) < 2:
        raise UsageError(
            f"one run is given: {runs[0]}",
            cause="a run is compared with another one",
            hint=f"dist-train compare {runs[0]} OTHER; `dist-train list` shows the runs",
        )
    found = [find_run(run) for run in runs]
    _refuse_one_twice(runs, found)
    records = [read_records(run) for run in found]
    compared = compare_runs(records)
    names = column_names(found)
    if as_json:
        print_json(_record(found, compared, [one.problems for one in records]))
        return int(ExitCode.OK)
    for name, one in zip(names, records, strict=True):
        for problem in one.problems:
            click.echo(f"[dist-train] {name}: {problem}", err=True)
    click.echo("\n\n".join(_tables(names, compared)))
    return int(ExitCode.OK)


def column_names(found: Sequence[RunDir]) -> list[str]:
    """The runs' names; their directories where two have one name."""
    names = [run.path.name for run in found]
    return names if len(set(names)) == len(names) else [str(run.path) for run in found]


def _refuse_one_twice(words: Sequence[str], found: Sequence[RunDir]) -> None:
    for place, run in enumerate(found):
        if run in found[:place]:
            first = words[found.index(run)]
            raise UsageError(f"{first} and {words[place]} are one run: {run.path}", hint="name another run")


def _tables(names: Sequence[str], compared: Comparison) -> list[str]:
    shown = [_summary_rows(compared), _figure_rows(compared)]
    parts = [render_table(("", *names), [row for rows in shown for row in rows])]
    if compared.curves:
        parts.append("\n".join(_curve_lines(names, compared.curves)))
    for title, values in (("CONFIG", compared.config), ("VERSIONS", compared.versions)):
        if values:
            rows = [(key, *map(_cell, each)) for key, each in values.items()]
            parts.append(render_table((f"{title}, where it differs", *names), rows))
        else:
            parts.append(f"{title}: no difference")
    parts.append(_verdict(compared.hashes))
    return [part for part in parts if part]


_FORMS = {
    "wall_s": clock,
    "goodput": lambda share: f"{100 * share:.1f} %",
    "samples_per_s": lambda speed: f"{speed:,.0f}",
    "step_s": lambda seconds: f"{1000 * seconds:.3g} ms",
    "memory_bytes": size,
}
_TITLES = {"wall_s": "time", "samples_per_s": "samples/s", "step_s": "mean step", "memory_bytes": "memory"}


def _summary_rows(compared: Comparison) -> list[tuple[str, ...]]:
    rows = []
    for key, values in compared.summary.items():
        if any(value is not None for value in values):
            form = _FORMS.get(key, _cell)
            cells = ("-" if value is None else str(form(value)) for value in values)
            rows.append((_TITLES.get(key, key), *cells))
    return rows


def _figure_rows(compared: Comparison) -> list[tuple[str, ...]]:
    return [
        (f"{name} ({_KINDS.get(kind, kind)})", *(number(value) for value in values))
        for (kind, name), values in compared.figures.items()
    ]


def _curve_lines(names: Sequence[str], curves: Sequence[ComparedCurve]) -> list[str]:
    from dist_train.reports.compare_runs import points_that_count
    from dist_train.reports.sparkline import WIDTH, sparkline

    width, lines = max(map(len, names)), []
    for one in curves[:_MOST_CURVES]:
        span = f"{number(one.low)} to {number(one.high)}, up to step {number(one.last_step)}"
        lines.append(f"{one.name} ({_KINDS.get(one.kind, one.kind)}), {span}")
        for name, curve in zip(names, one.curves, strict=True):
            if curve is None or curve.last is None:
                lines.append(f"  {name:<{width}}  -")
                continue
            drawn = sparkline(points_that_count(curve), one.last_step, one.low, one.high)
            lines.append(f"  {name:<{width}}  {drawn:<{WIDTH}}  {number(curve.last.value)}")
    if len(curves) > _MOST_CURVES:
        lines.append(f"and {len(curves) - _MOST_CURVES} more: --json has all")
    return lines


def _verdict(hashes: Mapping[str, Sequence[Any]]) -> str:
    known = {name: values for name, values in hashes.items() if all(values)}
    if not known:
        return ""
    same = [name for name, values in known.items() if len(set(values)) == 1]
    if len(same) == len(known):
        return f"the same to the bit: {', '.join(same)}"
    others = [name for name in known if name not in same]
    return f"not the same: {', '.join(others)}" + (f"; the same: {', '.join(same)}" if same else "")


def _cell(value: Any) -> str:
    if value is None or isinstance(value, int | float | str):
        text = number(value)
    else:
        text = json.dumps(value, default=str)
    # Escape codes of a record must not reach the terminal.
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _record(
    found: Sequence[RunDir], compared: Comparison, problems: Sequence[Sequence[str]]
) -> dict[str, Any]:
    runs = [
        {
            "name": run.path.name,
            "run_dir": run.path,
            **{key: values[place] for key, values in {**compared.summary, **compared.hashes}.items()},
            "problems": list(problems[place]),
        }
        for place, run in enumerate(found)
    ]
    figures = [
        {"kind": kind, "name": name, "values": list(values)}
        for (kind, name), values in compared.figures.items()
    ]
    curves = [
        {"kind": one.kind, "name": one.name, "points": [_points(curve) for curve in one.curves]}
        for one in compared.curves
    ]
    different = {"config": compared.config, "versions": compared.versions}
    return {"runs": runs, "figures": figures, "different": different, "curves": curves}


def _points(curve: Any) -> list[list[float]]:
    from dist_train.reports.compare_runs import points_that_count

    points = [] if curve is None else points_that_count(curve)
    every = max(1, -(-len(points) // _MOST_POINTS))
    kept = points[::every] + (points[-1:] if points and (len(points) - 1) % every else [])
    return [[point.step, point.value] for point in kept]


COMMAND = compare
