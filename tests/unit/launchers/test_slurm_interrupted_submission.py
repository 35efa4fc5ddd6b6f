"""Ctrl-C while sbatch has not answered: the job may be taken, so its run directory stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_stand_ins import Commands

from dist_train.rundir import RunDir
from dist_train.rundir.records import read_json

ANSWERS = "/bin/sleep 1; echo 12"
NEVER = "exec /bin/sleep 60"


def launched(folder: Path, commands: Commands, sbatch: str, interrupts: int) -> tuple[int, str, float]:
    """Code and stderr of `dist-train launch` with so many Ctrl-C, and the seconds from the first on."""
    commands.put_all("exit 0")
    asked = folder / "asked"
    commands.put("sbatch", f'[ "$1" = --test-only ] && exit; echo > {asked}; {sbatch}')
    (folder / "train.py").touch()
    words = ["launch", "--launcher", "slurm", "--device", "cpu", "--name", "r", "--detach", "train.py"]
    with subprocess.Popen(
        [sys.executable, "-m", "dist_train.cli.main", *words],
        cwd=folder,
        env={**os.environ, "PATH": f"{commands.folder}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        deadline = time.monotonic() + 30
        while not asked.exists():
            assert time.monotonic() < deadline
            assert command.poll() is None
            time.sleep(0.02)
        began = time.monotonic()
        for number in range(interrupts):
            time.sleep(0.3 * min(number, 1))
            os.killpg(command.pid, signal.SIGINT)  # as a terminal does
        _, err = command.communicate(timeout=45)
    return command.returncode, err, time.monotonic() - began


def test_the_job_that_was_taken_meanwhile_is_kept_and_named(tmp_path: Path, commands: Commands) -> None:
    code, err, _ = launched(tmp_path, commands, ANSWERS, interrupts=1)
    assert code == 130, err
    assert "waiting for sbatch's answer" in err
    assert "detached: job 12 goes on" in err
    assert "dist-train cancel r" in err
    record = read_json(RunDir(tmp_path / "runs" / "r").job)
    assert record is not None
    assert record["handle"] == "slurm:12"


def test_a_second_ctrl_c_gives_up_and_keeps_the_directory(tmp_path: Path, commands: Commands) -> None:
    code, err, seconds = launched(tmp_path, commands, NEVER, interrupts=2)
    assert (code, seconds < 20) == (69, True), err
    assert "whether Slurm has taken the job is unknown" in err
    assert "squeue --me --name r" in err
    assert (tmp_path / "runs" / "r" / "plan" / "job.sbatch").exists()


@pytest.mark.parametrize("asked", ["refused", "unanswered"])
def test_what_was_refused_leaves_nothing_and_what_was_not_answered_stays(
    tmp_path: Path, commands: Commands, asked: str
) -> None:
    why = "Invalid account" if asked == "refused" else "Socket timed out on send/recv operation"
    sbatch = f"echo 'sbatch: error: Batch job submission failed: {why}' >&2; exit 1"
    code, err, _ = launched(tmp_path, commands, sbatch, interrupts=0)
    assert code == 69, err
    assert why in err
    assert (tmp_path / "runs").exists() is (asked == "unanswered")
