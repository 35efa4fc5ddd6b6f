"""`dist-train cancel`: end a run; it saves, stops and stays ended."""

from __future__ import annotations

import time

import click

from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, run_argument
from dist_train.cli.run.find_run import OpenedRun, open_run
from dist_train.cli.run.job_state import is_active, is_unknown, never_began, query_state
from dist_train.errors import ExitCode, UnavailableError
from dist_train.jobs.launcher import JobState

_POLL_S = 0.25
# Beyond the grace: agents exit by a barrier, a pod has 30 s more until it is killed, and a scheduler's
# answer may be some seconds old.
_MARGIN_S = 45.0


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples("dist-train cancel  # the newest run", "dist-train cancel digits-1"),
)
@run_argument
def cancel(run: str) -> int:
    """End RUN: its ranks save and stop. Done again, or after the end, it says so and changes nothing."""
    opened = open_run(run)
    name, state = opened.short_name, query_state(opened)
    if not is_active(opened, state) and not is_unknown(state):
        why = "no agent of it ever began" if never_began(opened, state) else _end_text(state)
        left = opened.launcher.left_after_end(opened.handle, opened.run_dir)
        click.echo(f"{name} has ended already: {why}{f'; {left}' if left else ''}")
        return int(ExitCode.OK)
    allowed_s = opened.spec.grace_s + _MARGIN_S
    click.echo(f"[dist-train] cancelling {name}: it saves and stops (at most {allowed_s:.0f} s)", err=True)
    state = _end(opened, allowed_s)
    click.echo(f"{name} has ended: {_end_text(state)}; `dist-train resume {name}` goes on with it")
    return int(ExitCode.OK)


def _end(opened: OpenedRun, allowed_s: float) -> JobState:
    deadline = time.monotonic() + allowed_s
    while True:
        # Requested again each time: a request before the first agent has started may be lost.
        opened.launcher.cancel(opened.handle, opened.run_dir)
        time.sleep(_POLL_S)
        state = query_state(opened)
        if not is_active(opened, state) and not is_unknown(state):
            return state
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"{opened.short_name} has not ended within {allowed_s:.0f} s: {state.phase}",
                cause=f"{state.source}: {state.detail}" if state.detail else None,
                hint=f"dist-train status {opened.short_name}",
            )


def _end_text(state: JobState) -> str:
    if state.exit_code == ExitCode.CANCELLED:
        return "cancelled"
    code = "" if state.exit_code is None else f", exit code {state.exit_code}"
    return f"{state.phase}{code}"


COMMAND = cancel
