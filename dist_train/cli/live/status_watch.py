"""`status --watch`: the status again whenever it changes, in place on a terminal, until the run has ended."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import click

from dist_train.cli.run.find_run import OpenedRun
from dist_train.cli.run.job_state import is_active, is_unknown
from dist_train.cli.run.run_status import RunStatus, query_status

_EVERY_S = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def watch_status(opened: OpenedRun, first: RunStatus, render: Callable[[RunStatus], str]) -> RunStatus:
    """Print each new state; return the last one.

    Elsewhere than on a terminal only a change of phase, attempt, step or checkpoint is printed: ages and
    rates change all the time.
    """
    in_place = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    found, shown = first, None
    while True:
        if in_place:
            click.echo(_CLEAR + render(found))
        elif (now := _marks(found)) != shown:
            click.echo(("" if shown is None else "\n") + render(found))
            shown = now
        if not is_active(opened, found.state) and not is_unknown(found.state):
            return found
        time.sleep(_EVERY_S)
        found = query_status(opened)


def _marks(found: RunStatus) -> tuple[object, ...]:
    summary = found.summary
    step = None if summary.train is None else summary.train.get("step")
    return found.state.phase, found.state.detail, summary.attempt, step, summary.checkpoint_step
