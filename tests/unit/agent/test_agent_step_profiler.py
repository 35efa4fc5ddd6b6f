"""Counting steps and profiling those asked for, with a profiler that only notes what it is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_train.agent.workers.step_profiler import StepProfiler
from dist_train.profiling.profiled_steps import ProfiledSteps
from dist_train.profiling.trace_file import read_trace


class Noted:
    """A profiler like torch's."""

    def __init__(self, log: list[str], fails_at: str = "") -> None:
        self.log = log
        self.fails_at = fails_at
        self.metadata: dict[str, Any] = {}

    def _note(self, what: str) -> None:
        if what == self.fails_at:
            raise RuntimeError(f"{what} failed")
        self.log.append(what)

    def step(self) -> None:
        self._note("step")

    def stop(self) -> None:
        self._note("stop")

    def add_metadata_json(self, key: str, value: str) -> None:
        self.metadata[key] = json.loads(value)

    def export_chrome_trace(self, path: str) -> None:
        self._note("export")
        Path(path).write_text(json.dumps({**self.metadata, "traceEvents": [], "traceName": path}))


class Optimizer:
    """Anything that steps."""


class Loop:
    """A loop with one optimizer, and its profiler."""

    def __init__(self, folder: Path, first: int, last: int, fails_at: str = "") -> None:
        self.log: list[str] = []
        self.path = folder / "profile" / "attempt-0" / "rank-1.trace.json.gz"
        self.optimizer = Optimizer()
        self._fails_at = fails_at
        self.profiler = StepProfiler(ProfiledSteps(first, last), self.path, {"rank": 1}, self._start)

    def _start(self, steps: int) -> Noted:
        if self._fails_at == "start":
            raise RuntimeError("Profiler is already enabled on this thread")
        self.log.append(f"start {steps}")
        return Noted(self.log, self._fails_at)

    def run(self, steps: int) -> Loop:
        for number in range(1, steps + 1):
            self.profiler.stepped(self.optimizer, (), {})
            self.log.append(f"after {number}")
        return self


def test_the_step_before_the_first_warms_up_and_the_last_ends_it(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 4, 6).run(8)
    assert loop.log == [
        *("after 1", "start 3", "after 2", "step", "after 3", "step", "after 4", "step", "after 5"),
        *("stop", "export", "after 6", "after 7", "after 8"),
    ]
    facts = read_trace(loop.path)["dist_train"]
    assert (facts["rank"], facts["first"], facts["complete"]) == (1, 4, 3)
    assert [each.name for each in loop.path.parent.iterdir()] == [loop.path.name]


def test_the_first_optimizer_that_steps_gives_the_count(tmp_path: Path) -> None:
    loop, other = Loop(tmp_path, 3, 3), Optimizer()
    for number in range(1, 4):
        loop.profiler.stepped(loop.optimizer, (), {})
        loop.profiler.stepped(other, (), {})
        loop.profiler.stepped(other, (), {})
        loop.log.append(f"after {number}")
    assert loop.log == ["start 1", "after 1", "step", "after 2", "stop", "export", "after 3"]


def test_an_end_within_the_steps_writes_the_complete_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, 4, 9).run(6)
    loop.profiler.end()
    loop.profiler.end()
    assert loop.log[-2:] == ["stop", "export"]
    assert read_trace(loop.path)["dist_train"]["complete"] == 3
    assert "profile of steps 4 to 6: profile/attempt-0/rank-1.trace.json.gz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        (0, "no optimizer of torch made a step"),
        (2, "ended after step 2, before step 4"),
        (3, "ended after step 3, before step 4"),
    ],
)
def test_an_end_before_the_steps_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, said: str
) -> None:
    loop = Loop(tmp_path, 4, 9).run(steps)
    loop.profiler.end()
    assert said in capsys.readouterr().err
    assert not loop.path.parent.exists()
    assert ("stop" in loop.log) == ("start 6" in loop.log)


@pytest.mark.parametrize("fails_at", ["start", "step", "stop", "export"])
def test_a_profiler_that_fails_is_said_once_and_the_steps_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails_at: str
) -> None:
    loop = Loop(tmp_path, 4, 5, fails_at).run(9)
    loop.profiler.end()
    said = capsys.readouterr().err
    assert said.count("no profile: RuntimeError") == 1
    assert "the training goes on" in said
    assert loop.log[-1] == "after 9"
    assert not loop.path.exists()


def test_a_full_disk_is_said_and_leaves_no_half_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(raw: Path, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dist_train.agent.workers.step_profiler.compress_trace", full)
    loop = Loop(tmp_path, 3, 4).run(9)
    assert "No space left on device; the training goes on" in capsys.readouterr().err
    assert list(loop.path.parent.iterdir()) == []


RANK = """
import sys
print("dist_train.agent.workers.step_profiler" in sys.modules, "torch" in sys.modules, len(sys.meta_path))
"""


def test_a_rank_loads_it_only_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANK)
    worker = [sys.executable, "-P", "-m", "dist_train.agent.workers.worker_main", str(os.getpid()), "script"]
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "DIST_TRAIN_ATTEMPT": "2"}
    environ["DIST_TRAIN_RUN_DIR"] = str(tmp_path / "run")

    def said(**more: str) -> list[str]:
        words, both = [*worker, str(tmp_path / "train.py")], {**environ, **more}
        done = subprocess.run(words, env=both, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done
        return done.stdout.split()

    *without, finders = said()
    assert without == ["False", "False"]
    assert said(DIST_TRAIN_PROFILE="3:4") == ["True", "False", str(int(finders) + 1)]


class LeavesHalf(Noted):
    """As Kineto on a full disk: it writes beside the file, raises nothing and leaves that."""

    def export_chrome_trace(self, path: str) -> None:
        self._note("export")
        Path(f"{path}.tmp").write_text('{"traceEvents": [')


def test_what_torch_leaves_of_a_failed_export_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, 3, 4)
    loop.profiler._start = lambda steps: LeavesHalf(loop.log)  # type: ignore[method-assign]
    loop.run(9)
    assert "export" in loop.log
    assert "no profile: " in capsys.readouterr().err
    assert list(loop.path.parent.iterdir()) == []
