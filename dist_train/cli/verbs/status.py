"""`dist-train status`: a run's state, who reported it, and what to do next."""

from __future__ import annotations

from typing import Any

import click

from dist_train.cli.live.status_watch import watch_status
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import age, number, render_pairs
from dist_train.cli.run.find_run import OpenedRun, open_run
from dist_train.cli.run.job_state import is_unknown
from dist_train.cli.run.run_status import RunStatus, query_status, status_record
from dist_train.cli.run.run_summary import RunSummary
from dist_train.errors import ExitCode, UsageError
from dist_train.rundir import metric_text
from dist_train.rundir.display_number import display_number
from dist_train.rundir.failure import Failure
from dist_train.rundir.outcome_text import root_cause_name, time_rows


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train status  # of the newest run",
        "dist-train status digits-1 --json",
        "dist-train status --watch --exit-code; echo $?  # wait for the end",
    ),
)
@run_argument
@json_option
@click.option(
    "--exit-code", "returns_exit_code", is_flag=True, help="End with the run's exit code (69: none yet)."
)
@click.option("--watch", is_flag=True, help="Print it again whenever it changes, until the run has ended.")
def status(run: str, as_json: bool, returns_exit_code: bool, watch: bool) -> int:
    """Say where RUN is, and who answered. Ends with 0 if it could answer."""
    if as_json and watch:
        raise UsageError("--json prints one object, and --watch several", hint="give one of them")
    opened = open_run(run)
    found = query_status(opened)
    if watch:
        found = watch_status(opened, found, lambda one: render_pairs(_pairs(one)))
    if as_json:
        print_json(status_record(found))
    elif not watch:
        click.echo(render_pairs(_pairs(found)))
    if not returns_exit_code:
        return int(ExitCode.UNAVAILABLE if is_unknown(found.state) else ExitCode.OK)
    if found.state.exit_code is None:
        click.echo(f"[dist-train] {opened.short_name} is {found.state.phase}: it has no exit code", err=True)
        return int(ExitCode.UNAVAILABLE)
    return found.state.exit_code


def _pairs(found: RunStatus) -> list[tuple[str, str]]:
    opened, state, summary = found.opened, found.state, found.summary
    spec = opened.spec
    rows = [
        ("run", f"{opened.run.path.name}  ({opened.run.path})"),
        ("phase", state.phase),
        ("source", f"{state.source}: {state.detail}" if state.detail else state.source),
        (
            "job",
            f"{opened.handle.text}, {spec.nodes} node(s) x {spec.procs_per_node} processes on {spec.device}",
        ),
        ("submitted", f"{age(summary.submitted_age_s)} ago"),
        *_progress(opened, summary),
    ]
    if state.nodes:
        rows.insert(3, ("nodes", "\n".join(state.nodes)))
    rows += [
        (name, figures(record))
        for name, record in (("train", summary.train), ("evaluation", summary.evaluation))
        if record
    ]
    if state.phase == "running":
        rows += _speed(summary.train)
    if (times := found.time) is not None:
        rows += time_rows(times)
    if found.failure is not None:
        rows.append(("failure", _failure(found.failure)))
    if state.exit_code is not None:
        rows.append(("exit code", str(state.exit_code)))
    return [*rows, ("next", "\n".join(found.next))]


def _progress(opened: OpenedRun, summary: RunSummary) -> list[tuple[str, str]]:
    """From the run's own records, where this machine sees them."""
    if opened.run_dir_on_nodes is not None and summary.attempt is None:
        return [("records", f"{opened.run_dir_on_nodes} on the nodes' run volume")]
    if summary.events_problem is not None:
        damage = [("events", f"{summary.events_problem}: phase and restarts may be wrong")]
    else:
        damage = []
    attempt = number(display_number(summary.attempt))
    used = f"{attempt}, {summary.restarts} of {opened.spec.max_restarts} restarts used"
    return [*damage, ("attempt", used), *_devices(opened, summary), ("checkpoint", _checkpoint(summary))]


def _devices(opened: OpenedRun, summary: RunSummary) -> list[tuple[str, str]]:
    """Each rank's GPU; before the ranks have recorded them, the GPUs that the launcher assigned."""
    if summary.devices:
        return [("devices", "\n".join(str(device) for device in summary.devices))]
    assigned = [(node, opened.spec.gpus_of(node)) for node in range(opened.spec.nodes)]
    lines = [f"node {node} was given {', '.join(gpus)}" for node, gpus in assigned if gpus]
    return [("devices", "\n".join(lines))] if lines else []


def _checkpoint(summary: RunSummary) -> str:
    if summary.checkpoint_step is None:
        return "none"
    return f"step {summary.checkpoint_step}, {age(summary.checkpoint_age_s)} ago"


def figures(record: dict[str, Any]) -> str:
    """`step 140, epoch 7, loss 0.0312, accuracy 0.97`."""
    position = {"step": record.get("step"), "epoch": metric_text.display_epoch(record)}
    measured = metric_text.measured(record)
    order = sorted(measured, key=lambda name: (name != "loss", name))
    shown = {name: value for name, value in position.items() if value is not None}
    shown |= {name: measured[name] for name in order}
    return ", ".join(f"{name} {number(value)}" for name, value in shown.items())


def _speed(record: dict[str, Any] | None) -> list[tuple[str, str]]:
    """`lr 0.004, 4336 samples/s, data wait 5 %, Time 0.015 (0.016), …, ETA 0:20`, as far as recorded."""
    parts = (metric_text.speed, metric_text.data_wait, metric_text.columns, metric_text.eta_and_resources)
    texts = [] if record is None else [text for part in parts for text in part(record)]
    return [("speed", ", ".join(texts))] if texts else []


def _failure(failure: Failure) -> str:
    lines = [f"{root_cause_name(failure)} ({failure.cls}): {failure.message}"]
    if failure.file is not None:
        lines.append(f"at {failure.file}:{failure.line}")
    if failure.log is not None:
        lines.append(f"log {failure.log}")
    return "\n".join(lines)


COMMAND = status
