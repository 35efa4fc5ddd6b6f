"""Following a job while the terminal takes no output: its end is seen, and Ctrl-C is."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from slurm_stand_ins import Commands

from dist_train.jobs import JobHandle
from dist_train.rundir import RunDir
from launchers.slurm import SlurmLauncher

HANDLE = JobHandle("slurm:7")
LINE = b"x" * 99 + b"\n"


@contextmanager
def stopped_reader(patch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard output and error as one pipe that nobody reads; gives its reading end."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w", buffering=1) as stream, patch.context() as inner:
        inner.setattr(sys, "stdout", stream)
        inner.setattr(sys, "stderr", stream)
        try:
            yield reads
        finally:
            os.set_blocking(reads, False)
            quiet_at = time.monotonic()
            while time.monotonic() < quiet_at + 0.3:  # let whoever writes go on
                try:
                    if not os.read(reads, 1 << 20):
                        break
                    quiet_at = time.monotonic()
                except BlockingIOError:
                    time.sleep(0.02)
            os.close(reads)


@pytest.mark.timeout(60)
def test_the_end_of_a_job_is_seen_though_nobody_reads(
    commands: Commands, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands.says("squeue", "7|COMPLETED|None|n1|N/A\n")
    commands.says("scontrol", "JobId=7 JobState=COMPLETED Reason=None Restarts=0 ExitCode=0:0 NodeList=n1\n")
    (run.logs / "7_0_log.out").write_bytes(LINE * 3000)  # a pipe holds 65,536 bytes
    codes: list[int] = []
    with stopped_reader(monkeypatch):
        waiter = threading.Thread(
            target=lambda: codes.append(SlurmLauncher().wait(HANDLE, str(run.path))), daemon=True
        )
        waiter.start()
        waiter.join(15)
        assert codes == [0], "it waits for the reader"


def test_a_reader_gets_every_line_in_order(
    commands: Commands, run: RunDir, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    commands.says("squeue", "7|FAILED|None|n1|N/A\n")
    commands.says("scontrol", "JobId=7 JobState=FAILED Reason=None Restarts=0 ExitCode=41:0 NodeList=n1\n")
    lines = [b"line %d" % number for number in range(5000)]
    (run.logs / "7_0_log.out").write_bytes(b"\n".join([*lines, b""]))
    assert SlurmLauncher().wait(HANDLE, str(run.path)) == 41
    written = capfdbinary.readouterr()
    assert written.out.splitlines() == lines
    assert b"[dist-train] job 7 is failed" in written.err
