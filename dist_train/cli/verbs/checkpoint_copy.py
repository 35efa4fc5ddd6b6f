"""`dist-train checkpoint copy`: checkpoints to another directory or bucket, verified."""

from __future__ import annotations

from pathlib import Path

import click

from dist_train.cli.options.param_types import Count
from dist_train.cli.options.shell_complete import runs
from dist_train.cli.options.verb import Verb, examples
from dist_train.cli.options.verb_options import SPELLINGS, json_option, once
from dist_train.cli.output.json_output import print_json
from dist_train.cli.output.table import size
from dist_train.cli.run.checkpoint_process import ask_checkpoints
from dist_train.cli.run.choose_checkpoint import checkpoint_of_step, checkpoints_of
from dist_train.config.bucket_url import scheme_of
from dist_train.errors import ExitCode


@click.command(
    "copy",
    cls=Verb,
    context_settings=SPELLINGS,
    epilog=examples(
        "dist-train checkpoint copy digits-1 s3://bucket/archive/digits-1  # all that are kept",
        "dist-train checkpoint copy s3://bucket/archive/digits-1 here/ --step 500",
    ),
)
@click.argument("source", metavar="RUN|CHECKPOINT", shell_complete=runs)
@click.argument("target", metavar="FOLDER|URL")
@once("--step", type=Count(0), help="Of a run: this step.  [default: all]")
@json_option
def copy(source: str, target: str, step: int | None, as_json: bool) -> int:
    """Copy checkpoints: each byte is compared as it is read, and the copy is read back.

    Either may be a URL. What is at the target already is compared, and not written again.
    """
    chosen = checkpoints_of(source)
    if step is not None:
        chosen = checkpoint_of_step(chosen, step)
    where = target if scheme_of(target) is not None else str(Path(target).absolute())
    found = []
    for one in ask_checkpoints("copy", chosen, where):
        found.append(one)
        if not as_json:
            done = "was there, and is equal" if one["was_there"] else "copied, read back and equal"
            click.echo(f"step {one['step']}  {size(one['bytes'])}  {done}: {one['path']}")
    if as_json:
        print_json({"target": where, "checkpoints": found})
    return int(ExitCode.OK)
