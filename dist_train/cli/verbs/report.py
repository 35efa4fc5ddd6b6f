"""`dist-train report`: one HTML file about a run, which needs neither network nor script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dist_train.cli.options.shell_complete import html_files
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once, run_argument
from dist_train.cli.output.json_output import print_json
from dist_train.cli.run.find_run import find_run, open_found
from dist_train.cli.run.run_status import query_status, status_record
from dist_train.errors import CheckpointWriteError, ConfigError, DistTrainError, ExitCode, NotFoundError
from dist_train.rundir import RunDir

# The mark of a report is in the first bytes of the file.
_HEAD_BYTES = 4096


@click.command(
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train report  # of the newest run",
        "dist-train report digits-1 --output digits.html",
    ),
)
@run_argument
@once(
    "-o",
    "--output",
    metavar="FILE",
    shell_complete=html_files,
    help="Where to write it; an older report there is replaced.  [default: ./RUN-report.html]",
)
@json_option
def report(run: str, output: str | None, as_json: bool) -> int:
    """Write what is known of RUN as one HTML file, and print its name.

    Curves by step and by time, where the time went, failures and restarts, checkpoints, config, environment.
    Works while the run is running, and after any end; what cannot be read is named in it.
    """
    from dist_train.reports.page import render_page
    from dist_train.reports.run_records import read_records

    found = find_run(run)
    path = Path(output or f"{found.path.name}-report.html")
    _refuse_other_files(path)
    records = read_records(found)
    status = _status(found)
    content = render_page(records, status).encode()
    _write(path, content)
    if as_json:
        print_json(
            {
                "run_dir": found.path,
                "report": path.absolute(),
                "bytes": len(content),
                "phase": status.get("phase", "unknown"),
                "records": records.metrics.records,
                "thinned": records.metrics.is_thinned,
                "attempts": len(records.attempts),
                "problems": list(records.problems),
            }
        )
        return int(ExitCode.OK)
    for problem in records.problems:
        click.echo(f"[dist-train] {problem}", err=True)
    click.echo(str(path))
    return int(ExitCode.OK)


def _status(run: RunDir) -> dict[str, Any]:
    """As `status --json` has it; for a run whose launcher cannot be asked, why."""
    try:
        return status_record(query_status(open_found(run)))
    except DistTrainError as error:
        return {"detail": error.what}
    except (OSError, ValueError, KeyError, TypeError) as error:
        return {"detail": f"its state cannot be told: {error}"}


def _refuse_other_files(path: Path) -> None:
    """A report may be replaced; any other file was not meant."""
    from dist_train.reports.page import GENERATOR

    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint=f"--output {path / 'report.html'}")
    if not path.parent.is_dir():
        raise NotFoundError(f"no such directory: {path.parent}", hint=f"mkdir -p {path.parent}")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if GENERATOR.encode() not in head:
        raise ConfigError(
            f"{path} exists, and is no report",
            cause="only a report is replaced",
            hint="give another --output",
        )


def _write(path: Path, content: bytes) -> None:
    from dist_train.rundir.records import write_bytes_atomic

    try:
        write_bytes_atomic(path, content)
    except OSError as error:
        raise CheckpointWriteError(
            f"{path} could not be written: {error.strerror}", hint="--output names another place"
        ) from error


COMMAND = report
