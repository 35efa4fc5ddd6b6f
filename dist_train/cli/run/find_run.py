"""Find a run by directory, name, handle or `@last`; read and write its record job.json."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_train.cli.run.run_owner import denied, is_own
from dist_train.errors import ConfigError, NotFoundError, UsageError
from dist_train.jobs.launcher import JobHandle, Launcher, load_launcher
from dist_train.jobs.spec import JobSpec
from dist_train.near_names import nearest
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json, write_json_atomic

LAST = "@last"
ROOT = Path("runs")


class DamagedRunError(ConfigError):
    """A run whose job.json cannot be read: what it was launched with is unknown, its files are there."""

    def __init__(self, run: RunDir, why: str) -> None:
        super().__init__(
            f"{run.job} cannot be read: {why}",
            cause="it was changed or damaged after the launch wrote it",
            hint=f"its logs and checkpoints are untouched: {run.logs}, {run.checkpoints}",
        )
        self.run = run


@dataclass(frozen=True)
class OpenedRun:
    """A run and its launcher."""

    run: RunDir
    launcher: Launcher
    handle: JobHandle
    spec: JobSpec
    options: dict[str, Any]

    @property
    def run_dir(self) -> str:
        """The run directory, as launchers take it."""
        return str(self.run.path)

    @property
    def short_name(self) -> str:
        """What a person types for this run: see `short_name_of`."""
        return short_name_of(self.run)

    @property
    def run_dir_on_nodes(self) -> Path | None:
        """The run directory as its nodes see it, where that is not this one (a volume of the cluster)."""
        return self.launcher.run_dir_on_nodes(self.spec)


def find_run(name: str) -> RunDir:
    """The run of that directory, name or handle; raise NotFoundError (66) with the nearest name."""
    if name == LAST:
        return _newest_own_run()
    places = [RunDir(Path(os.path.normpath(place.absolute()))) for place in (Path(name), ROOT / name)]
    for found in ([run for run in places if _is_run(run)], [run for run in all_runs() if _is_job(run, name)]):
        if len(set(found)) > 1:
            raise _ambiguous(name, found)
        if found:
            return found[0]
    near = nearest(Path(name).name, [run.path.name for run in all_runs()])
    raise NotFoundError(
        f"no run is called {name!r}",
        cause=f"{name} holds no job.json, which every run has"
        if Path(name).is_dir()
        else f"looked in {ROOT.absolute()}",
        hint=f"did you mean {near!r}?" if near else "`dist-train list` shows the runs here",
    )


def _newest_own_run() -> RunDir:
    runs = list(all_runs(skipped=note_skipped))
    own = [run for run in runs if is_own(run)]
    if own:
        return max(own, key=lambda run: run.job.stat().st_mtime)
    raise NotFoundError(
        f"there is no run {'of yours ' if runs else ''}in {ROOT.absolute()}",
        cause=f"those of others are taken by name only: {', '.join(run.path.name for run in runs)}"
        if runs
        else None,
        hint="dist-train launch examples/digits.yaml",
    )


def all_runs(root: Path = ROOT, skipped: Callable[[Path], None] | None = None) -> Iterator[RunDir]:
    """Every run below `runs/`, in order of name.

    Args:
        skipped: called with each folder that may not be read, as another user's may not.
    """
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            run = RunDir(folder.absolute())
            try:
                is_run = run.is_run
            except PermissionError:
                if skipped is not None:
                    skipped(folder)
                continue
            if is_run:
                yield run


def note_skipped(folder: Path) -> None:
    """Print on stderr which folder is left out, and whose it is."""
    error = denied(folder)
    print(
        f"[dist-train] skipped: {error.what}" + (f", {error.cause}" if error.cause else ""), file=sys.stderr
    )


def _is_run(run: RunDir) -> bool:
    try:
        return run.is_run
    except PermissionError:
        raise denied(run.path) from None


def open_run(name: str) -> OpenedRun:
    """Find a run and load its launcher."""
    return open_found(find_run(name))


def open_found(run: RunDir) -> OpenedRun:
    """Read job.json and load the launcher; raise DamagedRunError where either is impossible."""
    record = read_job(run)
    try:
        spec = JobSpec.from_json(record["spec"])
        name, handle = str(record["launcher"]), JobHandle(str(record["handle"]))
        options = dict(record.get("options") or {})
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedRunError(run, f"{type(error).__name__}: {error}") from error
    return OpenedRun(run, load_launcher(name), handle, spec, options)


def read_job(run: RunDir) -> dict[str, Any]:
    """The content of job.json; raise DamagedRunError where it is not a JSON object."""
    try:
        record = read_json(run.job)
    except (OSError, ValueError) as error:
        raise DamagedRunError(run, str(error)) from error
    if record is None:
        raise DamagedRunError(run, "it is not a JSON object")
    return record


def write_job(
    run: RunDir, launcher: str, handle: JobHandle, spec: JobSpec, options: Mapping[str, Any]
) -> None:
    """Write job.json, which makes the directory a run; a resume writes it again."""
    record = {"launcher": launcher, "handle": handle.text, "argv": sys.argv, "options": dict(options)}
    write_json_atomic(run.job, {**record, "spec": spec.to_json()})


def rename_handle(run: RunDir, handle: JobHandle) -> None:
    """Record the handle under which the job goes on, so that it finds the run."""
    write_json_atomic(run.job, {**read_job(run), "handle": handle.text})


def short_name_of(run: RunDir) -> str:
    """The shortest argument for this run here: its name, else its directory; quoted for a shell."""
    name = run.path.name
    plain = (ROOT / name).absolute() == run.path and not RunDir(Path(name).absolute()).is_run
    return shlex.quote(name if plain else str(run.path))


def _is_job(run: RunDir, name: str) -> bool:
    """Whether `name` is the run's handle, or the number in it."""
    try:
        handle = str(read_job(run).get("handle"))
    except ConfigError:
        return False
    return handle == name or (name.isdigit() and JobHandle(handle).id == name)


def _ambiguous(name: str, found: list[RunDir]) -> UsageError:
    """The error for a name of several runs: none is chosen by a guess."""
    return UsageError(
        f"{name!r} means {len(found)} runs: {', '.join(str(run.path) for run in found)}",
        hint=f"give the directory: {shlex.quote(str(found[0].path))}",
    )
