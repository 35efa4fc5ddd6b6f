"""`dist-train supervise RUN_DIR` (hidden): what a detached local run leaves behind to follow it."""

from __future__ import annotations

from pathlib import Path

import click

from dist_train.cli.live.detached_output import output_within_limit
from dist_train.cli.live.follow_job import follow
from dist_train.cli.run.find_run import open_run
from dist_train.cli.run.run_owner import refuse_foreign


@click.command()
@click.argument("run_dir", type=click.Path(path_type=Path))
def supervise(run_dir: Path) -> int:
    """Follow the run to its end."""
    opened = open_run(str(run_dir))
    refuse_foreign(opened.run)
    with output_within_limit(opened.run.logs, opened.spec.log_limit_bytes):
        return follow(opened.launcher, opened.handle, run_dir)


COMMAND = supervise
