"""Run directories as the real writers make them, and the command line in this process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from dist_train import registry
from dist_train.cli.main import run as run_cli
from dist_train.cli.run.find_run import write_job
from dist_train.jobs import JobHandle, JobSpec, Target
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.metrics_file import append_metric
from dist_train.rundir.records import write_json_atomic

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


@dataclass(frozen=True)
class Said:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def dist_train(capsys: pytest.CaptureFixture[str]) -> Command:
    """`dist-train ARGS...`, as the console script runs it."""

    def command(*words: object) -> Said:
        capsys.readouterr()
        code = run_cli([str(word) for word in words])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return command


@dataclass
class FakeRun:
    """A run directory in the making: `run.finished(3)` adds what a real agent would write."""

    run: RunDir
    spec: JobSpec
    handle: JobHandle = field(default_factory=lambda: JobHandle("local:1"))

    def submitted(self) -> FakeRun:
        append_event(self.run, "submitted", launcher="local", handle=self.handle.text)
        write_job(self.run, "local", self.handle, self.spec, {})
        return self

    def began(self) -> FakeRun:
        attempt = self.run.begin_attempt()
        self.run.attempt_logs(attempt).mkdir()
        append_event(self.run, "attempt_started", attempt, hosts=["here"])
        return self

    def log(self, rank: int, *lines: str, attempt: int = 0) -> FakeRun:
        with (self.run.attempt_logs(attempt) / f"rank-{rank}.log").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)
        return self

    def trained(self, step: int, loss: float = 0.5, kind: str = "train", **more: Any) -> FakeRun:
        append_metric(self.run.metrics, {"kind": kind, "step": step, "epoch": 0, "loss": loss, **more})
        return self

    def restarted(self, attempt: int = 0) -> FakeRun:
        append_event(self.run, "restarted", attempt, why="killed")
        return self

    def finished(self, code: int = 0, attempt: int = 0, why: str = "done") -> FakeRun:
        append_event(self.run, "finished", attempt, exit_code=code, why=why)
        return self

    def preempted(self, attempt: int = 0) -> FakeRun:
        append_event(self.run, "preempted", attempt)
        return self


@pytest.fixture
def make_run(here: Path) -> Callable[..., FakeRun]:
    """A submitted run below ./runs of which no agent has begun."""

    def make(name: str = "digits-1", root: Path | None = None, **spec: Any) -> FakeRun:
        run = RunDir((root or here / "runs") / name)
        run.create()
        target = Target("script", str(here / "train.py"), (), str(here))
        return FakeRun(run, JobSpec(name, f"{name}-id", run.path, target, **spec)).submitted()

    return make


@pytest.fixture
def own(request: pytest.FixtureRequest) -> Iterator[Callable[[RunDir], subprocess.Popen[bytes]]]:
    """Start an owner of a run: a process with an agent's title, and its lease."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(run: RunDir) -> subprocess.Popen[bytes]:
        import socket

        owner = subprocess.Popen([f"dist-train agent node=0 run={run.path}", "60"], executable="/bin/sleep")
        started.append(owner)
        deadline = time.monotonic() + 5
        while b"dist-train agent" not in Path(f"/proc/{owner.pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline
        write_json_atomic(run.lease, {"host": socket.gethostname(), "pid": owner.pid, "attempt": 0})
        return owner

    yield begin
    for owner in started:
        owner.kill()
        owner.wait()


_PRETEND = """
from pydantic import BaseModel, ConfigDict, Field

from dist_train.jobs import JobHandle, JobState, Launcher, Plan


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    partition: str | None = Field(
        default=None, description="The queue.", json_schema_extra={"flags": ["-p", "--partition"]}
    )


class Pretend(Launcher):
    name = "pretend"
    Options = Options
    answer = None

    def plan(self, spec, options):
        script = f"#!/bin/sh\\n# {spec.run_id} {options.partition}\\n"
        return Plan("pretend", (("job.sh", script.encode()),), "one script")

    def submit(self, plan):
        return JobHandle("pretend:1")

    def state(self, handle, run_dir):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or JobState("pending", "queue", "PD")

    def logs(self, handle, run_dir, rank, attempt, follow):
        return iter(())

    def cancel(self, handle, run_dir):
        pass

    def wait(self, handle, run_dir):
        return 0


LAUNCHER = Pretend()
"""


@pytest.fixture
def pretend(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A second launcher, as another distribution registers one."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "pretend_launcher.py").write_text(_PRETEND)
    monkeypatch.syspath_prepend(str(folder))
    entry = EntryPoint("pretend", "pretend_launcher:LAUNCHER", "dist_train.launchers")
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [entry] if group == "dist_train.launchers" else []
    )
    registry._owners.cache_clear()
    yield registry.load("launchers", "pretend")
    registry._owners.cache_clear()
    sys.modules.pop("pretend_launcher", None)
