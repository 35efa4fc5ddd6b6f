"""Logs that fill a disk: what is not kept is said, the run goes on, and its exit code is its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

LINES = 200_000
PRINTS = f"""
for n in range({LINES}):
    print("line", n, "." * 80)
"""
FULL_DISK = """
    mount -t tmpfs -o size=8m tmpfs {disk} || exit 99
    {python} -P -m dist_train.cli.main launch --run-dir {disk}/run --device cpu {script} > out.txt 2> err.txt
    echo "code $?"
    {python} -P -m dist_train.cli.main logs {disk}/run > logs.txt
    {python} -P -m dist_train.cli.main status {disk}/run > status.txt
    df {disk}
"""


@pytest.mark.proof
def test_a_disk_that_logs_have_filled_costs_log_lines_and_not_the_run(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.fail("needs root and unshare(1), for a tmpfs in a private mount namespace")
    disk, script = tmp_path / "disk", tmp_path / "prints.py"
    disk.mkdir()
    script.write_text(PRINTS)
    text = textwrap.dedent(FULL_DISK).format(disk=disk, python=sys.executable, script=script)
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    errors = (tmp_path / "err.txt").read_text()
    assert "code 0" in done.stdout, done.stdout + done.stderr + errors
    assert "Traceback" not in errors, errors
    assert errors.count("No space left on device") == 2, errors
    lost = re.search(r"(\d+) lines of rank 0's log were not kept", errors)
    assert lost is not None, errors
    kept = [line for line in (tmp_path / "logs.txt").read_text().splitlines() if "line " in line]
    assert len(kept) > 10_000
    assert len(kept) + int(lost[1]) == LINES
    assert (tmp_path / "out.txt").read_text().count("\n") == LINES
    assert "done" in (tmp_path / "status.txt").read_text()
