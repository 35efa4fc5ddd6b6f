"""Submit a planned job, or print its plan; then print its handle, or follow it to the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click
from pydantic import BaseModel

from dist_train.cli.live.display_mode import Progress
from dist_train.cli.live.follow_job import follow, print_detached
from dist_train.cli.run.find_run import rename_handle, write_job
from dist_train.errors import ExitCode
from dist_train.jobs.launcher import JobHandle, Launcher, Plan, SubmittedMeanwhile
from dist_train.jobs.spec import JobSpec
from dist_train.rundir import RunDir


def print_notices(notices: Iterable[str]) -> None:
    """Print each as a line on stderr."""
    for notice in notices:
        click.echo(f"[dist-train] {notice}", err=True)


def print_plan(launcher: Launcher, spec: JobSpec, options: BaseModel, notices: Iterable[str]) -> int:
    """--dry-run: stdout is only the plan, and no file is written."""
    plan = launcher.plan(spec, options)
    shown = (*notices, *plan.notes, *launcher.notices(spec))
    print_notices((*shown, f"{plan.summary}; run directory {spec.run_dir}"))
    for _, content in plan.files:
        sys.stdout.buffer.write(content)
    sys.stdout.flush()
    return int(ExitCode.OK)


def submit_plan(launcher: Launcher, plan: Plan, spec: JobSpec, options: BaseModel) -> JobHandle:
    """Submit the plan and write job.json: from then on the directory is a run.

    Raises SubmittedMeanwhile, a KeyboardInterrupt, for a job that goes on after a Ctrl-C.
    """
    run, record = RunDir(spec.run_dir), options.model_dump(mode="json")
    try:
        handle = launcher.submit(plan)
    except SubmittedMeanwhile as taken:
        write_job(run, launcher.name, taken.handle, spec, record)
        print_detached(run, taken.handle)
        raise
    write_job(run, launcher.name, handle, spec, record)
    return handle


def finish_submission(
    launcher: Launcher, handle: JobHandle, run_dir: Path, detach: bool, progress: Progress = "plain"
) -> int:
    """With --detach print the handle alone; else follow the job and return its exit code."""
    if not detach:
        return follow(launcher, handle, run_dir, progress)
    detached = launcher.detach(handle, str(run_dir))
    if detached != handle:
        rename_handle(RunDir(run_dir), detached)
    click.echo(launcher.detach_output(detached))
    return int(ExitCode.OK)
