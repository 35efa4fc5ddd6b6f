"""`dist-train list`: the runs below ./runs, one line each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dist_train.cli.candidates import folders
from dist_train.cli.facts import gather
from dist_train.cli.json_output import print_json
from dist_train.cli.options import SPELLINGS, json_option, once
from dist_train.cli.runs import ROOT, all_runs, open_found
from dist_train.cli.standing import ask
from dist_train.cli.status import Status, to_json
from dist_train.cli.table import age, number, render_table
from dist_train.cli.verb import Verb, examples
from dist_train.errors import DistTrainError, ExitCode, NotFoundError
from dist_train.rundir import RunDir

_HEADS = ("NAME", "PHASE", "LAUNCHER", "NODES x PROCS", "ATTEMPT", "STEP", "LOSS", "AGE")


@click.command(
    "list",
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples("dist-train list", "dist-train list --all-dirs . --json"),
)
@json_option
@once(
    "--all-dirs",
    metavar="DIR",
    shell_complete=folders,
    help="Every run anywhere below DIR.  [default: those in ./runs]",
)
def list_runs(as_json: bool, all_dirs: str | None) -> int:
    """List the runs: phase, size, newest checkpoint's step, last loss, time since the submission."""
    runs = all_runs() if all_dirs is None else _below(Path(all_dirs))
    found: list[tuple[RunDir, Status | DistTrainError]] = [(run, _status(run)) for run in runs]
    if as_json:
        print_json({"runs": [_object(run, status) for run, status in found]})
        return int(ExitCode.OK)
    if not found:
        click.echo(f"[dist-train] no runs in {Path(all_dirs or ROOT).absolute()}", err=True)
        return int(ExitCode.OK)
    # A run is named by what another verb would take: below another folder its path.
    rows = [_row(run.path.name if all_dirs is None else str(run.path), status) for run, status in found]
    click.echo(render_table(_HEADS, rows))
    for run, status in found:
        if isinstance(status, DistTrainError):
            click.echo(f"[dist-train] {run.path.name}: {status.what}", err=True)
    return int(ExitCode.OK)


def _below(root: Path) -> Iterator[RunDir]:
    if not root.is_dir():
        raise NotFoundError(f"no such directory: {root}")
    for folder, inner, files in os.walk(root.absolute()):
        if "job.json" in files:
            inner.clear()  # a run holds no other run
            yield RunDir(Path(folder))
        inner[:] = sorted(name for name in inner if not name.startswith("."))


def _status(run: RunDir) -> Status | DistTrainError:
    """One damaged run, or one whose launcher is not installed here, must not hide the others."""
    try:
        opened = open_found(run)
        return Status(opened, ask(opened), gather(run))
    except DistTrainError as error:
        return error


def _object(run: RunDir, status: Status | DistTrainError) -> dict[str, Any]:
    if isinstance(status, Status):
        return to_json(status)
    return {"name": run.path.name, "run_dir": run.path, "phase": "unknown", "detail": status.what}


def _row(name: str, status: Status | DistTrainError) -> tuple[str, ...]:
    if not isinstance(status, Status):
        return (name, "unknown", *("-" for _ in _HEADS[2:]))
    facts, spec = status.facts, status.opened.spec
    newest = facts.train or facts.evaluation or {}
    return (
        name,
        status.state.phase,
        status.opened.launcher.name,
        f"{spec.nodes} x {spec.procs_per_node}",
        number(facts.attempt),
        number(facts.checkpoint_step),
        number(newest.get("loss")),
        age(facts.submitted_age_s),
    )


COMMAND = list_runs
