"""Real kills for memory: a launch inside a control group with a small limit, made by the test (root only)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import nothing_left

from dist_train.jobs.cgroups import group_folders
from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.rundir.failure import Failure, read_failure
from dist_train.rundir.records import read_json

pytestmark = pytest.mark.multiprocess

LIMIT = 1400 << 20
SCRIPT = """
    import os, sys, time
    import torch.utils.data

    def eat():
        kept = []
        while True:
            kept.append(bytearray(b"x") * (32 << 20))  # each page is touched once

    class Eater(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            eat()

    if int(os.environ["RANK"]) == 1:
        if sys.argv[1] == "rank":
            eat()
        if sys.argv[1] == "worker":
            next(iter(torch.utils.data.DataLoader(Eater(), num_workers=1)))
        if sys.argv[1] == "kill":
            os.kill(os.getpid(), 9)
    time.sleep(60)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group with a limit of LIMIT bytes; skips where none can be made."""
    version, own = next(group_folders("memory", Path("/")), (0, Path("/")))
    own = own if version == 1 else own.parent
    folder = own / f"dist-train-test-{time.time_ns()}"
    try:
        folder.mkdir()
        (folder / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(LIMIT))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield folder
    for _ in range(100):
        with suppress(OSError):
            folder.rmdir()
            return
        time.sleep(0.1)
    pytest.fail(f"{folder} is not empty")


Done = subprocess.CompletedProcess[str]


def run_in(
    group: Path, folder: Path, how: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], RunDir]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    enter = ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(group)]
    launch = [sys.executable, "-P", "-m", "dist_train.cli.main", "launch", "--name", "r", "--device", "cpu"]
    argv = [*enter, *launch, "--gpus-per-node", "2", *options, str(script), how]
    done = subprocess.run(
        argv, cwd=folder, text=True, capture_output=True, timeout=200, stdin=subprocess.DEVNULL, check=False
    )
    return done, RunDir(folder / "runs" / "r")


def failure_in(run: RunDir, done: Done) -> Failure:
    failure = read_failure(run)
    assert failure is not None, done.stderr
    job = read_json(run.job)
    assert job is not None
    assert nothing_left(job["spec"]["run_id"])
    return failure


def test_a_rank_killed_for_memory_is_said_with_limit_and_peak(group: Path, tmp_path: Path) -> None:
    done, run = run_in(group, tmp_path, "rank", "--max-restarts", "1")
    assert done.returncode == 137, done.stderr
    failure = failure_in(run, done)
    assert (failure.cls, failure.rank, failure.signal) == ("out_of_memory", 1, 9)
    assert failure.memory_limit == LIMIT
    assert failure.memory_peak is not None
    assert LIMIT * 0.9 < failure.memory_peak <= LIMIT
    said = (
        f"killed by signal 9 (SIGKILL): out of memory at the limit of 1.4 GiB of its control group ({group}/"
    )
    assert failure.message.startswith(said)
    assert "peak 1.4 GiB" in failure.message
    assert (
        f"FAILED: rank 1 (node 0, local rank 1) on {failure.host}, pid {failure.pid}: {said}" in done.stderr
    )
    assert failure.hint is not None
    assert f"raise it: {group}" in failure.hint
    # Restarted as any rank that a signal killed.
    assert len(list(read_events(run, "attempt_started"))) == 2


@pytest.mark.proof
def test_a_loader_worker_killed_for_memory_is_said_too(group: Path, tmp_path: Path) -> None:
    done, run = run_in(group, tmp_path, "worker", "--max-restarts", "1")
    assert done.returncode == 1, done.stderr
    failure = failure_in(run, done)
    assert (failure.cls, failure.rank, failure.memory_limit) == ("out_of_memory", 1, LIMIT)
    assert "DataLoader worker (pid" in failure.message
    assert "out of memory at the limit of 1.4 GiB of its control group" in failure.message
    assert len(list(read_events(run, "attempt_started"))) == 1


@pytest.mark.proof
def test_a_kill_by_a_person_is_not_called_out_of_memory(group: Path, tmp_path: Path) -> None:
    done, run = run_in(group, tmp_path, "kill", "--max-restarts", "0")
    assert done.returncode == 137, done.stderr
    failure = failure_in(run, done)
    assert failure.cls == "signal"
    assert failure.message == (
        "killed by signal 9 (SIGKILL) (not by the kernel for memory: this control group counts no such kill)"
    )
