"""`dist-train profile`: where the time of the steps went that `launch --profile` recorded; one screen."""

from __future__ import annotations

from pathlib import Path

import click

from dist_train.cli.options.param_types import Count
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import render_table
from dist_train.cli.run.find_run import find_run, open_run, short_name_of
from dist_train.errors import NotFoundError
from dist_train.profiling.profiled_steps import DEFAULT
from dist_train.profiling.trace_file import find_traces, read_trace
from dist_train.profiling.trace_summary import TraceSummary, summarise
from dist_train.rundir import RunDir
from dist_train.rundir.display_number import display_number, recorded_index

_HEADS = ("RANK", "STEP", "COMPUTE", "COMMUNICATION", "DATA WAIT", "STALL", "GFLOP/STEP", "MFU")
_NAME_WIDTH = 60


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train profile  # of the newest run's newest profiled attempt",
        "dist-train profile digits-1 --rank 0 --json",
    ),
)
@run_argument
@once("--rank", type=Count(0), help="Of one rank only.  [default: all that were profiled]")
@once(
    "--attempt",
    type=Count(1),
    help="Of one attempt; counts from 1, as `status` prints.  [default: the newest with a trace]",
)
@json_option
def profile(run: str, rank: int | None, attempt: int | None, as_json: bool) -> int:
    """Show what the steps of RUN that `launch --profile` recorded spent their time on."""
    directory = find_run(run)
    number, traces = _chosen(directory, rank, attempt)
    found = [summarise(read_trace(path), of_rank) for of_rank, path in traces.items()]
    if as_json:
        ranks = [{**one.to_record(), "trace": traces[one.rank]} for one in found]
        print_json({"run_dir": directory.path, "attempt": number, "ranks": ranks})
    else:
        click.echo(_screen(directory, number, found, traces))
    return 0


def _chosen(run: RunDir, rank: int | None, attempt: int | None) -> tuple[int, dict[int, Path]]:
    """The attempt (as recorded) and its traces; raises NotFoundError."""
    found = find_traces(run)
    number = max(found, default=0) if attempt is None else recorded_index(attempt)
    traces = {one: path for one, path in found.get(number, {}).items() if rank in (None, one)}
    if traces:
        return number, traces
    if found:
        have = "; ".join(
            f"attempt {display_number(one)}: rank {', '.join(map(str, ranks))}"
            for one, ranks in found.items()
        )
        raise NotFoundError(f"{short_name_of(run)} has no such trace", cause=f"there are {have}")
    raise _none(run)


def _none(run: RunDir) -> NotFoundError:
    opened = open_run(str(run.path))
    on_nodes = opened.run_dir_on_nodes
    if on_nodes is not None:
        return NotFoundError(
            f"{opened.short_name} has no trace here",
            cause=f"its run directory is {on_nodes} on the nodes' volume, traces in {on_nodes / 'profile'}",
            hint="copy that folder into the run directory here",
        )
    return NotFoundError(
        f"{opened.short_name} has no trace",
        cause="it was not asked for, or the steps were not reached; the ranks' logs say which",
        hint=f"dist-train launch --profile {DEFAULT} …",
    )


def _screen(run: RunDir, number: int, found: list[TraceSummary], traces: dict[int, Path]) -> str:
    first = found[0]
    what = "GPU" if first.parts.on_device else "CPU"
    steps = f"steps {first.first} to {first.first + first.steps - 1}"
    parts = [
        f"{run.path.name}, attempt {display_number(number)}, {steps} since its start, {what}: {first.device}",
        render_table(_HEADS, [_row(one) for one in found]),
    ]
    parts += sorted({f"MFU: {one.mfu.why_not}" for one in found if one.mfu.fraction is None})
    slowest = max(found, key=lambda one: one.parts.step_s)
    parts += ["", render_table(_heads_of_operators(slowest), _operators(slowest)), ""]
    parts.append(f"traces, for https://ui.perfetto.dev: {next(iter(traces.values())).parent}")
    return "\n".join(parts)


def _row(one: TraceSummary) -> tuple[str, ...]:
    parts = one.parts
    whole = parts.whole_s or 1.0
    seconds = (parts.compute_s, parts.communication_s, parts.data_wait_s, parts.stall_s)
    mfu = "-" if one.mfu.fraction is None else f"{100 * one.mfu.fraction:.1f} %"
    shares = (f"{_ms(part / max(1, one.steps))} {100 * part / whole:3.0f} %" for part in seconds)
    return (str(one.rank), _ms(parts.step_s), *shares, f"{one.flops_per_step / 1e9:.3g}", mfu)


def _heads_of_operators(one: TraceSummary) -> tuple[str, ...]:
    return (
        f"TOP {'KERNELS' if one.parts.on_device else 'OPERATORS'} OF RANK {one.rank}",
        "PER STEP",
        "",
        "CALLS",
    )


def _operators(one: TraceSummary) -> list[tuple[str, ...]]:
    steps, whole = max(1, one.steps), one.parts.whole_s or 1.0
    return [
        (
            _cut(each.name),
            _ms(each.seconds / steps),
            f"{100 * each.seconds / whole:.0f} %",
            f"{each.calls / steps:.3g}",
        )
        for each in one.top
    ]


def _cut(name: str) -> str:
    return name if len(name) <= _NAME_WIDTH else name[: _NAME_WIDTH - 1] + "…"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


COMMAND = profile
