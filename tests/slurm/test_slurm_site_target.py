"""`make test-slurm-site`: what is missing is named, and nothing is left behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).parents[2] / ".ci" / "slurm_site.py"


@contextmanager
def target(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(SCRIPT), "--folder", str(folder), *words],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        yield process


def ended(folder: Path, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    with target(folder, *words, env=env) as process:
        output = process.communicate(timeout=200)[0]
    return process.returncode, output


def nothing_is_left(slurm: SlurmCluster, folder: Path) -> None:
    assert list(folder.iterdir()) == []
    assert slurm.run("squeue", "-h").stdout == ""


def test_what_is_missing_is_named_and_nothing_is_skipped(slurm: SlurmCluster, tmp_path: Path) -> None:
    code, said = ended(tmp_path)
    assert (code, "PARTITION=…, one of: high, low15, low5, main, tiny" in said) == (1, True), said
    code, said = ended(tmp_path, "--partition", "tiny")
    assert (code, "2 nodes in partition 'tiny': it has 1" in said) == (1, True), said
    code, said = ended(tmp_path, "--partition", "none-such")
    assert (code, "it has 0" in said) == (1, True), said
    code, said = ended(tmp_path, "--partition", "main", env={"PATH": "/nowhere"})
    assert (code, "sbatch, squeue, scancel, scontrol, sinfo: not on PATH" in said) == (1, True), said
    code, said = ended(Path("/proc/none"), "--partition", "main")
    assert (code, "FOLDER=" in said) == (1, True), said
    nothing_is_left(slurm, tmp_path)


@pytest.mark.proof
def test_it_runs_the_life_cycle_tests_and_leaves_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    code, said = ended(tmp_path, "--partition", "main", "--", "-k", "queue or followed")
    assert code == 0, said
    assert "2 passed" in said
    assert "skipped" not in said
    nothing_is_left(slurm, tmp_path)


@pytest.mark.proof
def test_a_failure_leaves_nothing(slurm: SlurmCluster, tmp_path: Path) -> None:
    # The job is in the queue when the test fails: it is held, and the run has no checkpoint in time.
    words = ("--arguments=--sbatch-arg begin=now+1hour", "--queue-s=-170")
    code, said = ended(tmp_path, "--partition", "main", *words, "--", "-k", "notice")
    assert code == 1, said
    assert "1 failed" in said
    nothing_is_left(slurm, tmp_path)


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing(slurm: SlurmCluster, tmp_path: Path, number: signal.Signals) -> None:
    with target(tmp_path, "--partition", "main", "--", "-k", "cancelled") as process:
        deadline = time.monotonic() + 60
        while " R " not in slurm.run("squeue", "-h", "-o", " %t ").stdout:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        process.send_signal(number)
        output = process.communicate(timeout=100)[0]
    assert process.returncode == 130, output
    assert "[site] left behind" not in output
    nothing_is_left(slurm, tmp_path)
