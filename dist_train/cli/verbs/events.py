"""`dist-train events`: what happened to a run, from its records, also while it happens."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.run.find_run import OpenedRun, open_run
from dist_train.cli.run.job_state import is_active, is_unknown, query_state
from dist_train.errors import ExitCode, UnavailableError
from dist_train.rundir.display_number import display_number
from dist_train.rundir.events import read_events
from dist_train.rundir.records import FileTail, parse_line

_POLL_S = 0.25
_STATE_S = 2.0  # between questions to the launcher
_HEAD = ("schema_version", "time", "kind", "attempt")
# In which an agent writes its last event, after its scheduler has reported the end.
_LAST_S = 2.0


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train events  # of the newest run",
        'dist-train events digits-1 --follow --json | while read -r event; do notify "$event"; done',
    ),
)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@json_option
def events(run: str, follow: bool, as_json: bool) -> int:
    """Print RUN's events: submitted, attempts, failures, restarts, checkpoints, the end.

    --json prints one object; with --follow one object per line, each as it happens.
    """
    opened = open_run(run)
    _refuse_elsewhere(opened)
    if as_json and not follow:
        print_json({"run_dir": opened.run.path, "events": list(read_events(opened.run))})
        return int(ExitCode.OK)
    for event in _followed(opened) if follow else read_events(opened.run):
        click.echo(json.dumps(event) if as_json else _text(event))
    return int(ExitCode.OK)


def _refuse_elsewhere(opened: OpenedRun) -> None:
    if (on_nodes := opened.run_dir_on_nodes) is not None:
        raise UnavailableError(
            f"the events of {opened.short_name} are not here",
            cause=f"they are in {on_nodes} on the nodes' run volume",
            hint=f"dist-train status {opened.short_name}",
        )


def _followed(opened: OpenedRun) -> Iterator[dict[str, Any]]:
    """Every event, until the run has ended and what it wrote last is read."""
    lines = FileTail(opened.run.events)
    ask_at, end_at = 0.0, float("inf")
    while True:
        for line in lines.read_new():
            if (event := parse_line(line)) is not None:
                yield event
        now = time.monotonic()
        if now >= end_at:
            return
        if now >= ask_at:
            state = query_state(opened)
            over = not is_active(opened, state) and not is_unknown(state)
            end_at = min(end_at, now + _LAST_S) if over else float("inf")
            ask_at = now + _STATE_S
        time.sleep(_POLL_S)


def _text(event: Mapping[str, Any]) -> str:
    attempt = event.get("attempt")
    where = "" if attempt is None else f"  attempt {display_number(attempt)}"
    rest = "  ".join(f"{name}={_value(value)}" for name, value in event.items() if name not in _HEAD)
    return f"{event.get('time', '-')}  {event.get('kind', '-'):<20}{where}  {rest}".rstrip()


def _value(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value)


COMMAND = events
