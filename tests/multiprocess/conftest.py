"""Runs of the workloads, started by the command line."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from installed_wheel import installed as installed  # fixtures of more than one file
from installed_wheel import wheel as wheel
from warm_commands.warm_launch import BackgroundCommand, launch_cli, start_launch

from dist_train.jobs.orphans import find_processes
from dist_train.rundir import RunDir
from dist_train.rundir.committed_steps import newest_step
from dist_train.rundir.events import read_events
from dist_train.rundir.result import Result, read_result
from dist_train.testing import CliResult
from dist_train.testing.command import spawn_command


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first: else one of two workers ends with them while the other has nothing to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    for item in items:
        # Two run at a time: a hang ends later than where one does. Asserted times are in the tests.
        if item.get_closest_marker("multiprocess") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(240))


WORKLOADS = Path(__file__).parent / "workloads"


@dataclass(frozen=True)
class Finished:
    """A run that has ended, and its records."""

    cli: CliResult
    run: RunDir

    @property
    def result(self) -> Result:
        found = read_result(self.run)
        assert found is not None, self.cli
        return found

    @property
    def hashes(self) -> tuple[str, str, str]:
        result = self.result
        return result.weights_hash, result.state_hash, result.metrics_hash

    @property
    def job(self) -> dict[str, Any]:
        return json.loads(self.run.job.read_text())

    @property
    def run_id(self) -> str:
        return self.job["spec"]["run_id"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return list(read_events(self.run, kind))  # type: ignore[arg-type]


def nothing_left(run_id: str, within_s: float = 15.0) -> bool:
    """Whether no process on this machine has the run's id in its environment, within the bound."""
    deadline = time.monotonic() + within_s
    while find_processes(run_id):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


Launch = Callable[..., Finished]


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """`launch("name", "--nodes", 2, ..., "train.py")` in a temporary folder."""
    return functools.partial(start, tmp_path)


def start(folder: Path, name: str, *words: object, timeout_s: float = 100, env: Any = None) -> Finished:
    argv: Sequence[str] = ["launch", "--name", name, "--device", "cpu", *map(str, words)]
    cli = launch_cli(argv, cwd=folder, env=env, timeout_s=timeout_s)
    return Finished(cli, RunDir(folder / "runs" / name))


def begin(folder: Path, name: str, *words: object, new_interpreter: bool = False) -> BackgroundCommand:
    """`launch` in the background, its output in out.txt; the caller ends it.

    Args:
        new_interpreter: start it and its agents as a user does: they import torch, which takes seconds.
    """
    argv = ["launch", "--name", name, "--device", "cpu", *map(str, words)]
    with (folder / "out.txt").open("wb") as out:
        if new_interpreter:
            return spawn_command(argv, folder, os.environ, out, out)
        return start_launch(argv, folder, out)


def wait_for(ready: Callable[[], bool], what: str, within_s: float = 60) -> None:
    """Poll until it is true; after the deadline the test fails with `what`."""
    deadline = time.monotonic() + within_s
    while not ready():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.005)


def wait_for_step(run: RunDir, step: int) -> None:
    """Wait until a checkpoint of this step or a later one is committed."""
    wait_for(lambda: (newest_step(run) or 0) >= step, f"a checkpoint of step {step}")
