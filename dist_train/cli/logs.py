"""`dist-train logs`: a run's log, by rank and attempt, also while it grows."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator

import click

from dist_train.cli.json_output import print_json
from dist_train.cli.live import mode
from dist_train.cli.live.follow import shown
from dist_train.cli.options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.runs import OpenedRun, open_run
from dist_train.cli.standing import ask, never_began
from dist_train.cli.values import Count, OneOf
from dist_train.cli.verb import Verb, examples
from dist_train.errors import NotFoundError, UsageError

_POLL_S = 0.2


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train logs -f  # all ranks of the newest run, while it grows",
        "dist-train logs digits-1 --rank 1 --attempt 0 --grep loss",
    ),
)
@run_argument
@once("--rank", type=Count(0), help="Of one rank only.  [default: all, each line behind its rank]")
@once("--attempt", type=Count(0), help="Of one attempt.  [default: the newest]")
@click.option("-f", "--follow", is_flag=True, help="Go on while it grows, into later attempts too.")
@once("--grep", metavar="RE", help="Only lines in which this regular expression is found.")
@once(
    "--progress",
    type=OneOf(mode.CHOICES),
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
        raise UsageError("--json prints one object, and --follow has no end", mend="give one of them")
    if progress not in (None, "plain") and not follow:
        raise UsageError(f"--progress {progress} shows a run at work: --follow is missing")
    pattern = _compile(grep)
    opened = open_run(run)
    how = mode.choose(progress or "plain", opened.launcher)
    if follow:
        _await_begin(opened)
    lines = opened.launcher.logs(opened.handle, opened.where, rank, attempt, follow)
    chosen = lines if pattern is None else filter(pattern.search, lines)
    if as_json:
        print_json({"run_dir": opened.run.path, "rank": rank, "attempt": attempt, "lines": [*chosen]})
    else:
        with shown(how, opened):
            _print(chosen)
    return 0


def _compile(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(f"--grep {text!r} is not a regular expression: {error}") from None


def _await_begin(opened: OpenedRun) -> None:
    """A job in a queue has no log yet, which is no error for somebody who follows it."""
    told = False
    while (state := ask(opened)).phase == "pending":
        if never_began(opened, state):
            raise NotFoundError(
                f"{opened.word} has no log: it was submitted, and no agent ever began",
                mend=f"dist-train resume {opened.word}",
            )
        if not told:
            click.echo(f"[dist-train] waiting for {opened.word}: {state.detail or 'pending'}", err=True)
            told = True
        time.sleep(_POLL_S)


def _print(lines: Iterator[str]) -> None:
    # What the ranks coloured stays coloured only on a terminal of somebody who wants colours.
    color = False if os.environ.get("NO_COLOR") else None
    for line in lines:
        click.echo(line, color=color)


COMMAND = logs
