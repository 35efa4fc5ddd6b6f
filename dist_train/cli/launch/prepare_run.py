"""Make a run's directory and write its config and plan; a launch that is refused leaves nothing behind."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dist_train.cli.launch.build_job import BuiltJob
from dist_train.errors import ConfigError
from dist_train.jobs.launcher import Plan
from dist_train.rundir import RunDir
from dist_train.rundir.directory import free_names, take_free_name, unwritable
from dist_train.rundir.records import write_bytes_atomic, write_json_atomic


def without_run_dir(job: BuiltJob) -> BuiltJob:
    """The job as it would be prepared now; no directory is made."""
    if job.is_named:
        return job
    root = job.spec.run_dir.parent
    return _in_directory(job, next(path for path in free_names(root, job.stem) if not path.exists()))


def prepare_run(job: BuiltJob) -> tuple[BuiltJob, Plan, list[Path]]:
    """Take the run directory and write config and plan.

    Returns:
        The job with its directory, its plan, and the folders that were made, innermost first.
    """
    run_dir = job.spec.run_dir
    parents = [folder for folder in run_dir.parents if not folder.exists()]
    if job.is_named:
        _refuse_existing_run(run_dir)
        made = [run_dir, *parents] if _take(RunDir(run_dir)) else []
    else:
        job = _in_directory(job, take_free_name(run_dir.parent, job.stem))
        made = [job.spec.run_dir, *parents]
    run = RunDir(job.spec.run_dir)
    try:
        run.create()
        if job.spec.config_yaml is not None:
            _write(run.config, job.spec.config_yaml.encode())
            write_json_atomic(run.config_origins, {"origins": dict(job.origins)})
        plan = job.launcher.plan(job.spec, job.options)
        write_plan(run, plan)
    except BaseException:
        remove_folders(made)
        raise
    return job, plan, made


def remove_folders(made: list[Path]) -> None:
    """Remove what a refused launch has made; files of others in the parent folders stay."""
    if made:
        shutil.rmtree(made[0], ignore_errors=True)
    for folder in made[1:]:
        with suppress(OSError):
            folder.rmdir()


def write_plan(run: RunDir, plan: Plan) -> None:
    """Write the bytes that are submitted as the only files of plan/."""
    run.plan.mkdir(mode=0o700, exist_ok=True)
    contents = dict((*plan.files, *plan.aside))
    for name, content in contents.items():
        _write(run.plan / name, content)
    for path in run.plan.iterdir():
        if path.is_file() and path.name not in contents:
            path.unlink()


def _in_directory(job: BuiltJob, run_dir: Path) -> BuiltJob:
    return replace(job, spec=replace(job.spec, run_dir=run_dir, name=run_dir.name))


def _take(run: RunDir) -> bool:
    """Take the directory; return whether it is new. Of two launches at once only one may write into it."""
    try:
        run.path.mkdir(mode=0o700, parents=True)
        new = True
    except OSError:
        new = False  # it existed, or `create` raises what is wrong
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
            f"another `dist-train launch` into {run.path} is running",
            cause="both would write one run",
            hint="give this run another --name",
        ) from None
    return new


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
            hint=f"`dist-train resume {path}` goes on with it; or give the new run another --name",
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigError(
            f"{path} exists and is not an empty directory",
            hint="give the run another --run-dir",
        )
