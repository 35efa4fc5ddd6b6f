"""`dist-train list`: the runs below ./runs, one line each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from dist_train import registry
from dist_train.cli.options.param_types import OneOf
from dist_train.cli.options.shell_complete import folders
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import age, number, render_table
from dist_train.cli.run.find_run import ROOT, all_runs, note_skipped, open_found
from dist_train.cli.run.run_filter import RunFilter
from dist_train.cli.run.run_owner import denied
from dist_train.cli.run.run_status import RunStatus, query_status, status_record
from dist_train.errors import DistTrainError, ExitCode, NotFoundError
from dist_train.jobs.launcher import Phase
from dist_train.rundir import RunDir
from dist_train.rundir.display_number import display_number

_HEADS = ("NAME", "PHASE", "LAUNCHER", "NODES x PROCS", "ATTEMPT", "STEP", "LOSS", "AGE")


@click.command(
    "list",
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train list",
        "dist-train list --status running --launcher slurm",
        "dist-train list --all-dirs . --json",
    ),
)
@json_option
@once(
    "--all-dirs",
    metavar="DIR",
    shell_complete=folders,
    help="Every run anywhere below DIR.  [default: those in ./runs]",
)
@once("--status", "phase", type=OneOf(get_args(Phase)), help="Only runs in this phase.")
@once("--launcher", type=OneOf(registry.names("launchers")), help="Only runs of this launcher.")
@once("--name", metavar="PATTERN", help="Only runs whose name fits: 'digits-*'.")
def list_runs(
    as_json: bool, all_dirs: str | None, phase: str | None, launcher: str | None, name: str | None
) -> int:
    """List the runs: phase, size, newest checkpoint's step, last loss, time since the submission.

    A run that --name or --launcher leaves out is not asked for, nor is its scheduler.
    """
    only = RunFilter(name, launcher, phase)
    runs = all_runs(skipped=note_skipped) if all_dirs is None else _below(Path(all_dirs))
    asked = [(run, _status(run)) for run in runs if only.may_match(run)]
    found = [(run, status) for run, status in asked if only.matches_phase(_phase(status))]
    if as_json:
        print_json({"runs": [_object(run, status) for run, status in found]})
        return int(ExitCode.OK)
    if not found:
        what = "no such runs" if only.is_set else "no runs"
        click.echo(f"[dist-train] {what} in {Path(all_dirs or ROOT).absolute()}", err=True)
        return int(ExitCode.OK)
    # The first column is an argument for other verbs: below another folder the path.
    rows = [_row(run.path.name if all_dirs is None else str(run.path), status) for run, status in found]
    click.echo(render_table(_HEADS, rows))
    for run, status in found:
        if isinstance(status, DistTrainError):
            click.echo(f"[dist-train] {run.path.name}: {status.what}", err=True)
    return int(ExitCode.OK)


def _below(root: Path) -> Iterator[RunDir]:
    if not root.is_dir():
        raise NotFoundError(f"no such directory: {root}")
    for folder, inner, files in os.walk(root.absolute(), onerror=_note_denied):
        if "job.json" in files:
            inner.clear()  # a run holds no other run
            yield RunDir(Path(folder))
        inner[:] = sorted(name for name in inner if not name.startswith("."))


def _note_denied(error: OSError) -> None:
    if isinstance(error, PermissionError):
        note_skipped(Path(error.filename))


def _status(run: RunDir) -> RunStatus | DistTrainError:
    """Its status; the error for a damaged run, or where its launcher is not installed: others are listed."""
    try:
        return query_status(open_found(run))
    except DistTrainError as error:
        return error
    except PermissionError as error:  # a run whose records only its owner may read
        return denied(Path(error.filename or run.path))


def _phase(status: RunStatus | DistTrainError) -> str:
    return status.state.phase if isinstance(status, RunStatus) else "unknown"


def _object(run: RunDir, status: RunStatus | DistTrainError) -> dict[str, Any]:
    if isinstance(status, RunStatus):
        return status_record(status)
    return {"name": run.path.name, "run_dir": run.path, "phase": "unknown", "detail": status.what}


def _row(name: str, status: RunStatus | DistTrainError) -> tuple[str, ...]:
    if not isinstance(status, RunStatus):
        return (name, "unknown", *("-" for _ in _HEADS[2:]))
    summary, spec = status.summary, status.opened.spec
    newest = summary.train or summary.evaluation or {}
    return (
        name,
        status.state.phase,
        status.opened.launcher.name,
        f"{spec.nodes} x {spec.procs_per_node}",
        number(display_number(summary.attempt)),
        number(summary.checkpoint_step),
        number(newest.get("loss")),
        age(summary.submitted_age_s),
    )


COMMAND = list_runs
