"""`dist-train launch`: plan, then submit, then follow to the end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dist_train.cli.arguments import LaunchCommand, asks_for_help, option_groups, parse, target_of
from dist_train.cli.candidates import files
from dist_train.cli.follow import follow
from dist_train.cli.live.mode import Progress, choose
from dist_train.cli.request import Request, build
from dist_train.cli.runs import rename_handle, write_job
from dist_train.cli.verb import examples
from dist_train.errors import ConfigError, ExitCode
from dist_train.jobs.launcher import JobHandle, Plan
from dist_train.rundir import RunDir
from dist_train.rundir.directory import take_free_name, unwritable
from dist_train.rundir.records import write_bytes_atomic

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
    """Parses by cli/arguments.py: where the words of the script begin, click's parsing ends."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        context = click.Context(self, info_name=info_name, parent=parent, **extra)
        context.args = list(args)
        return context

    def invoke(self, ctx: click.Context) -> int:
        if asks_for_help(self, ctx.args):
            click.echo(self.get_help(ctx))
            return 0
        return launch(ctx.args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Our options before a target and after a config; else files."""
        target = target_of(self, ctx.args)
        if incomplete.startswith("-") and (target is None or target.endswith((".yaml", ".yml"))):
            return super().shell_complete(ctx, incomplete)
        return files(incomplete)


def make_command() -> click.Command:
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
    """Plan, submit and follow; returns the job's exit code."""
    command = make_command()
    assert isinstance(command, _Launch)
    words = parse(command, argv)
    request = build(words, command.groups)
    progress = choose(words.options.get("progress"), request.launcher)
    if words.options.get("dry_run"):
        return _dry_run(request)
    for notice in request.notices:
        click.echo(f"[dist-train] {notice}", err=True)
    request, plan, made = _prepare(request)
    for notice in plan.notes:
        click.echo(f"[dist-train] {notice}", err=True)
    try:
        handle = _submit(request, plan)
    except BaseException:
        _remove(made)
        raise
    return finish_submission(
        request.launcher, handle, request.spec.run_dir, bool(words.options.get("detach")), progress
    )


def finish_submission(
    launcher: Any, handle: JobHandle, run_dir: Path, detach: bool, progress: Progress = "plain"
) -> int:
    """Print the handle alone, or follow the job."""
    if detach:
        detached = launcher.detach(handle, str(run_dir)) if hasattr(launcher, "detach") else handle
        if detached != handle:
            rename_handle(RunDir(run_dir), detached)
        click.echo(getattr(launcher, "detached_word", lambda handle: handle.text)(detached))
        return 0
    return follow(launcher, handle, run_dir, progress)


def _dry_run(request: Request) -> int:
    """stdout is only the plan; nothing is made."""
    spec = request.spec
    if not request.fixed_dir:
        free = _free_name(spec.run_dir.parent, request.stem)
        spec = replace(spec, run_dir=free, name=free.name)
    plan = request.launcher.plan(spec, request.options)
    for notice in (*request.notices, *plan.notes):
        click.echo(f"[dist-train] {notice}", err=True)
    click.echo(f"[dist-train] {plan.summary}; run directory {spec.run_dir}", err=True)
    for _, content in plan.files:
        sys.stdout.buffer.write(content)
    sys.stdout.flush()
    return int(ExitCode.OK)


def _free_name(root: Path, stem: str) -> Path:
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return root / f"{stem}-{number}"


def _prepare(request: Request) -> tuple[Request, Plan, list[Path]]:
    """Take the run directory and write config and plan; the folders made for it, innermost first."""
    spec = request.spec
    above = [folder for folder in spec.run_dir.parents if not folder.exists()]
    if request.fixed_dir:
        _refuse_existing_run(spec.run_dir)
        made = [spec.run_dir, *above] if _take(RunDir(spec.run_dir)) else []
    else:
        spec = replace(spec, run_dir=take_free_name(spec.run_dir.parent, request.stem))
        spec = replace(spec, name=spec.run_dir.name)
        made = [spec.run_dir, *above]
    request = replace(request, spec=spec)
    run = RunDir(spec.run_dir)
    try:
        run.create()
        if spec.config_yaml is not None:
            _write(run.config, spec.config_yaml.encode())
        plan = request.launcher.plan(spec, request.options)
        write_plan(run, plan)
    except BaseException:
        _remove(made)
        raise
    return request, plan, made


def _remove(made: list[Path]) -> None:
    """Nothing is left of a launch that was refused; what others have put there stays."""
    if made:
        shutil.rmtree(made[0], ignore_errors=True)
    for folder in made[1:]:
        with suppress(OSError):
            folder.rmdir()


def _take(run: RunDir) -> bool:
    """Make the directory ours; whether it is new. Of two launches at once only one may write into it."""
    try:
        run.path.mkdir(mode=0o700, parents=True)
        new = True
    except OSError:
        new = False  # it was there, or `create` says what is wrong
    try:
        run.create()
    except ConfigError:
        if new:
            shutil.rmtree(run.path, ignore_errors=True)
        raise
    try:
        run.plan.mkdir(mode=0o700)
    except FileExistsError:
        raise ConfigError(
            f"another `dist-train launch` into {run.path} is at work",
            cause="both would write one run",
            mend="give this run another --name",
        ) from None
    return new


def write_plan(run: RunDir, plan: Plan) -> None:
    """The bytes that are submitted, as files."""
    run.plan.mkdir(mode=0o700, exist_ok=True)
    for name, content in (*plan.files, *plan.aside):
        _write(run.plan / name, content)


def _write(path: Path, content: bytes) -> None:
    try:
        write_bytes_atomic(path, content)
    except OSError as error:
        raise unwritable(path.parent, error) from error


def _refuse_existing_run(path: Path) -> None:
    if RunDir(path).is_run:
        raise ConfigError(
            f"{path} is a run already",
            cause="launching into it would mix two runs",
            mend=f"`dist-train resume {path}` goes on with it; or give the new run another --name",
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(
            f"{path} exists and is not an empty directory",
            mend="give the run another --run-dir",
        )


def _submit(request: Request, plan: Plan) -> JobHandle:
    spec = request.spec
    handle = request.launcher.submit(plan)
    options = request.options.model_dump(mode="json")
    write_job(RunDir(spec.run_dir), request.launcher.name, handle, spec, options)
    click.echo(
        f"[dist-train] run {spec.name}: {plan.summary}; directory {_short(spec.run_dir)}",
        err=True,
    )
    return handle


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


COMMAND = make_command()
