"""`dist-train launch`: plan, then submit, then follow to the end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dist_train.cli.launch.arguments import YAML_SUFFIXES, asks_for_help, parse, target_of
from dist_train.cli.launch.launch_options import LaunchCommand, option_groups
from dist_train.cli.options.shell_complete import files
from dist_train.cli.options.verb import examples
from dist_train.cli.options.working_folder import refuse_missing_folder

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_EXAMPLES = examples(
    "dist-train launch --nodes 2 --gpus-per-node 2  # the bundled digits",
    "dist-train launch train.yaml trainer.epochs=3 seed=1  # any key, in passing",
    "dist-train launch --gpus-per-node 4 train.py --lr 0.1  # your script",
    "dist-train launch --gpus-per-node 4 -m my_package.train --lr 0.1",
    "dist-train launch train.yaml --launcher slurm --nodes 2 --gpus-per-node 4 -p gpu --time 8:00:00",
    "dist-train launch train.yaml --launcher kubernetes --image IMAGE --nodes 2 --run-volume pvc/runs",
    "dist-train launch train.yaml --launcher slurm --dry-run  # only print the plan",
)


class _Launch(LaunchCommand):
    """Parses with cli/launch/arguments.py: click's parsing ends where the script's arguments begin."""

    def invoke(self, ctx: click.Context) -> int:
        if asks_for_help(self, ctx.args):
            click.echo(self.get_help(ctx))
            return 0
        return launch(ctx.args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Our options before a target and after a config; else files."""
        target = target_of(self, ctx.args)
        if incomplete.startswith("-") and (target is None or target.endswith(YAML_SUFFIXES)):
            return super().shell_complete(ctx, incomplete)
        return files(incomplete)


def make_command() -> _Launch:
    """The command with every launcher's own options."""
    groups = option_groups()
    unique = {option.name: option for group in groups for option in group.options}
    command = _Launch(
        "launch",
        params=list(unique.values()),
        help="Run TARGET on every process of a job: CONFIG.yaml (our trainer; `a.b=c` words override it), "
        "SCRIPT.py or -m MODULE (any torchrun-style script; every word after it is the script's).",
        epilog=_EXAMPLES,
        options_metavar="[OPTIONS] [TARGET] [ARGS]...",
    )
    command.groups = groups
    return command


def launch(argv: Sequence[str]) -> int:
    """Plan, submit and follow; return the job's exit code."""
    # Not for --help and completion, which this module is imported for too.
    from dist_train.cli.launch.build_job import build_job
    from dist_train.cli.launch.prepare_run import prepare_run, remove_folders, without_run_dir
    from dist_train.cli.launch.submit_job import finish_submission, print_notices, print_plan, submit_plan
    from dist_train.cli.live.display_mode import choose
    from dist_train.jobs.launcher import SubmissionUnknown, SubmittedMeanwhile

    refuse_missing_folder()
    command = make_command()
    arguments = parse(command, argv)
    job = build_job(arguments, command.groups)
    progress = choose(arguments.options.get("progress"), job.launcher, job.spec)
    if arguments.options.get("dry_run"):
        job = without_run_dir(job)
        return print_plan(job.launcher, job.spec, job.options, job.notices)
    print_notices(job.notices)
    job, plan, made = prepare_run(job)
    print_notices((*plan.notes, *job.launcher.notices(job.spec)))
    try:
        handle = submit_plan(job.launcher, plan, job.spec, job.options)
    except (SubmittedMeanwhile, SubmissionUnknown):
        raise  # the job has the directory, or may have it
    except BaseException:
        remove_folders(made)
        raise
    run_dir = job.spec.run_dir
    print_notices([f"run {job.spec.name}: {plan.summary}; directory {_short(run_dir)}"])
    return finish_submission(job.launcher, handle, run_dir, bool(arguments.options.get("detach")), progress)


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


COMMAND = make_command()
