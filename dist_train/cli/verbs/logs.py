"""`dist-train logs`: a run's log, by rank and attempt, also while it grows."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import click

from dist_train.cli.live import display_mode
from dist_train.cli.live.live_view import shown
from dist_train.cli.options.param_types import Count, OneOf
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.run.find_run import DamagedRunError, OpenedRun, open_run
from dist_train.cli.run.job_state import never_began, query_state
from dist_train.errors import NotFoundError, UsageError
from dist_train.jobs.log_files import attempts, follow_logs
from dist_train.jobs.run_state import lease_state
from dist_train.rundir.display_number import recorded_index

_POLL_S = 0.2


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train logs -f  # all ranks of the newest run, while it grows",
        "dist-train logs digits-1 --rank 1 --attempt 1 --grep loss",
    ),
)
@run_argument
@once("--rank", type=Count(0), help="Of one rank only.  [default: all, each line behind its rank]")
@once(
    "--attempt",
    type=Count(1),
    help="Of one attempt; counts from 1, as `status` prints (attempt 1 is logs/attempt-0 of the run "
    "directory).  [default: the newest]",
)
@click.option("-f", "--follow", is_flag=True, help="Go on while it grows, into later attempts too.")
@once("--grep", metavar="RE", help="Only lines in which this regular expression is found.")
@once(
    "--progress",
    type=OneOf(display_mode.CHOICES),
    help="With --follow: live draws the panel of `launch` below the log.  [default: plain]",
)
@json_option
def logs(
    run: str,
    rank: int | None,
    attempt: int | None,
    follow: bool,
    grep: str | None,
    progress: str | None,
    as_json: bool,
) -> int:
    """Print the log of RUN's ranks."""
    if as_json and follow:
        raise UsageError("--json prints one object, and --follow has no end", hint="give one of them")
    if progress not in (None, "plain") and not follow:
        raise UsageError(f"--progress {progress} shows a run at work: --follow is missing")
    pattern = _compile(grep)
    index = None if attempt is None else recorded_index(attempt)
    try:
        opened = open_run(run)
    except DamagedRunError as error:
        directory, lines = error.run, _without_job(error, rank, index, follow)
        view: AbstractContextManager[object] = nullcontext()
    else:
        how = display_mode.choose(progress or "plain", opened.launcher, opened.spec)
        if follow:
            _await_begin(opened)
        lines = opened.launcher.logs(opened.handle, opened.run_dir, rank, index, follow)
        directory, view = opened.run, shown(how, opened)
    chosen = lines if pattern is None else filter(pattern.search, lines)
    if as_json:
        print_json({"run_dir": directory.path, "rank": rank, "attempt": index, "lines": [*chosen]})
    else:
        with view:
            _print(chosen)
    return 0


def _without_job(
    error: DamagedRunError, rank: int | None, attempt: int | None, follow: bool
) -> Iterator[str]:
    """The logs of the run directory, which need no launcher; raise the error where it has none."""
    if not attempts(error.run):
        raise error
    click.echo(f"[dist-train] {error.what}; the logs of the run directory follow", err=True)
    return follow_logs(error.run, rank, attempt, follow, lambda: lease_state(error.run).phase == "running")


def _compile(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}") from None


def _await_begin(opened: OpenedRun) -> None:
    """Wait for a job in a queue, which has no log yet: for --follow that is no error."""
    notified = False
    while (state := query_state(opened)).phase == "pending":
        if never_began(opened, state):
            raise NotFoundError(
                f"{opened.short_name} has no log: it was submitted, and no agent ever began",
                hint=f"dist-train resume {opened.short_name}",
            )
        if not notified:
            click.echo(f"[dist-train] waiting for {opened.short_name}: {state.detail or 'pending'}", err=True)
            notified = True
        time.sleep(_POLL_S)


def _print(lines: Iterator[str]) -> None:
    # The ranks' own escape codes are kept on a terminal, and dropped with NO_COLOR or elsewhere.
    color = False if os.environ.get("NO_COLOR") else None
    for line in lines:
        click.echo(line, color=color)


COMMAND = logs
