"""Finding a run: by directory, by name, or `@last`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_train import registry
from dist_train.errors import NotFoundError
from dist_train.jobs.launcher import JobHandle, Launcher
from dist_train.jobs.spec import JobSpec
from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json

LAST = "@last"
_ROOT = Path("runs")


@dataclass(frozen=True)
class OpenedRun:
    """A run and who launched it."""

    run: RunDir
    launcher: Launcher
    handle: JobHandle
    spec: JobSpec
    options: dict[str, Any]


def find_run(name: str) -> RunDir:
    """The run of that directory, name or handle; raises NotFoundError (66) with the nearest."""
    if name == LAST:
        runs = list(all_runs())
        if not runs:
            raise NotFoundError(
                f"there is no run in {_ROOT.absolute()}", mend="dist-train launch examples/digits.yaml"
            )
        return max(runs, key=lambda run: run.job.stat().st_mtime)
    for candidate in (Path(name), _ROOT / name):
        run = RunDir(candidate.absolute())
        if run.is_run:
            return run
    for run in all_runs():
        record = read_json(run.job)
        if record is not None and record.get("handle") == name:
            return run
    near = difflib.get_close_matches(Path(name).name, [run.path.name for run in all_runs()], n=1)
    raise NotFoundError(
        f"no run is called {name!r}",
        cause="a directory is a run once it holds job.json"
        if Path(name).is_dir()
        else f"looked in {_ROOT.absolute()}",
        mend=f"did you mean {near[0]!r}?" if near else "`dist-train list` shows the runs here",
    )


def all_runs(root: Path = _ROOT) -> Iterator[RunDir]:
    """Every run below `runs/`, in order of name."""
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            run = RunDir(folder.absolute())
            if run.is_run:
                yield run


def open_run(name: str) -> OpenedRun:
    """Find a run and load its launcher."""
    run = find_run(name)
    record = read_json(run.job) or {}
    launcher = registry.load("launchers", str(record.get("launcher")))
    assert isinstance(launcher, Launcher)
    spec = JobSpec.from_json(record["spec"])
    return OpenedRun(
        run, launcher, JobHandle(str(record.get("handle"))), spec, dict(record.get("options", {}))
    )
