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
from conftest import wait_for
from warm_commands.warm_launch import launch_cli

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
    # Once for each time that there was room again: a record that the run replaces gives some back.
    lost = [int(count) for count in re.findall(r"(\d+) lines of rank 0's log were not kept", errors)]
    assert lost, errors
    assert errors.count("No space left on device") == 1 + len(lost), errors
    kept = [line for line in (tmp_path / "logs.txt").read_text().splitlines() if "line " in line]
    assert len(kept) > 10_000
    assert len(kept) + sum(lost) == LINES
    assert (tmp_path / "out.txt").read_text().count("\n") == LINES
    assert "done" in (tmp_path / "status.txt").read_text()


@pytest.mark.proof
def test_the_output_of_a_detached_run_is_kept_within_the_limit(tmp_path: Path) -> None:
    script = tmp_path / "prints.py"
    script.write_text("for n in range(60_000): print('line', n, '.' * 40)\nprint('the', 'end')\n")
    words = ["launch", "--detach", "--device", "cpu", "--log-limit", "1M", "--run-dir", "run", str(script)]
    detached = launch_cli(words, tmp_path, timeout_s=60)
    assert detached.code == 0, detached
    logs = tmp_path / "run" / "logs"
    events = tmp_path / "run" / "events.jsonl"
    wait_for(lambda: '"finished"' in events.read_text(), "the end of the run", 60)
    wait_for(lambda: "the end" in "".join(text_of(logs, "launcher")), "the end of its output", 30)
    parts = text_of(logs, "launcher")
    assert 7 / 8 * (1 << 20) - (1 << 17) < sum(len(text) for text in parts) <= 1 << 20
    assert "line 1 ." in parts[0]
    assert "line 59999 ." in parts[-1]


def text_of(folder: Path, name: str) -> list[str]:
    """The text of each part of a log, from its first to its newest."""
    parts = sorted(folder.glob(f"{name}*.log"), key=lambda path: int((path.suffixes[0:-1] or [".0"])[0][1:]))
    return [path.read_text() for path in parts]
