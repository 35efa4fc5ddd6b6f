"""Follow a job to its end, and report the end."""

from __future__ import annotations

from pathlib import Path

import click

from dist_train.cli.live.display_mode import Progress
from dist_train.cli.live.live_view import shown
from dist_train.cli.run.find_run import open_found, short_name_of
from dist_train.errors import ExitCode
from dist_train.jobs.launcher import Detached, JobHandle, Launcher
from dist_train.jobs.run_state import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.failure import read_failure
from dist_train.rundir.outcome_text import render_failure, render_result
from dist_train.rundir.result import read_result

# What is said of a run whose records are elsewhere.
_STOPS: dict[int, str] = {
    ExitCode.CANCELLED: "cancelled",
    ExitCode.PREEMPTED: "stopped",
    ExitCode.INTERRUPTED: "stopped",
}


def follow(launcher: Launcher, handle: JobHandle, run_dir: Path, progress: Progress = "plain") -> int:
    """Wait for the end, then print the failure block (stderr) or the result table (stdout).

    Args:
        progress: how the run's progress is shown until then.
    """
    run = RunDir(run_dir)
    before = _stamp(run.failure)
    try:
        with shown(progress, open_found(run)):
            code = launcher.wait(handle, str(run_dir))
    except Detached:
        print_detached(run, handle)
        return int(ExitCode.INTERRUPTED)
    report_end(run, code, failed_now=_stamp(run.failure) != before)
    return code


def print_detached(run: RunDir, handle: JobHandle) -> None:
    """Print that the job goes on, and how to follow or end it."""
    word = short_name_of(run)
    click.echo(
        f"\n[dist-train] detached: job {handle.id} goes on.\n"
        f"  dist-train logs -f {word}\n  dist-train cancel {word}",
        err=True,
    )


def report_end(run: RunDir, code: int, failed_now: bool) -> None:
    """Print the result, the failure, or how to go on."""
    result = read_result(run)
    if code == ExitCode.OK:
        if result is not None:
            click.echo(render_result(run.path, result))
        return
    how = _stop_text(run, code)
    if how is not None:
        click.echo(f"[dist-train] {how}; go on with: dist-train resume {run.path}", err=True)
        return
    failure = read_failure(run) if failed_now else None
    if failure is not None:
        click.echo(render_failure(failure, code), err=True)
    else:
        click.echo(f"[dist-train] ended with exit code {code}; logs: {run.logs}", err=True)


def _stop_text(run: RunDir, code: int) -> str | None:
    """How a run was stopped and what it saved, by its records where they are here; None where it was not."""
    ended = lease_state(run)
    if ended.phase == "stopped" and ended.exit_code == code and ended.detail:
        return ended.detail
    return _STOPS.get(code)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino
