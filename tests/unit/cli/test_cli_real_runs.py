"""The verbs around real jobs of the local launcher: small scripts that load no torch themselves."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm_commands.warm_launch import launch_cli

from dist_train.cli.main import run as run_cli
from dist_train.testing import CliResult

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]

# Fails until the flag is there: the script itself must not change between two attempts.
_FAILS_FIRST = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "in", os.environ["DIST_TRAIN_RUN_ID"])
if not os.path.exists("flag"):
    sys.exit(3)
"""
_SLEEPS = "import time; print('up', flush=True); time.sleep(100)"


def dist_train(*words: str) -> CliResult:
    """One command in a process of its own."""
    return launch_cli(list(words), Path.cwd(), {"OMP_NUM_THREADS": "1"})


def polled(*words: str) -> str:
    """Stdout of a command in this process: it is repeated until it says what is wanted."""
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
        run_cli(list(words))
    return said.getvalue()


def status(run: str) -> dict[str, object]:
    """`status --json`; empty while there is no such run yet."""
    said = polled("status", run, "--json")
    found: dict[str, object] = json.loads(said) if said else {}
    return found


def await_phase(run: str, phase: str) -> None:
    deadline = time.monotonic() + 30
    while (found := status(run)).get("phase") != phase:
        assert time.monotonic() < deadline, found
        time.sleep(0.2)


def test_a_failed_run_is_resumed_with_the_same_id_at_another_size(here: Path) -> None:
    (here / "train.py").write_text(_FAILS_FIRST)
    assert (
        dist_train("launch", "--name", "a", "--gpus-per-node", "2", "--device", "cpu", "train.py").code == 3
    )
    assert dist_train("status", "a", "--exit-code").code == 3
    before = status("a")
    (here / "flag").write_text("")
    again = dist_train("resume", "a", "--nodes", "2", "--gpus-per-node", "1")
    assert again.code == 0, again.stderr
    assert f"rank 0 of 2 in {before['run_id']}" in again.stdout
    after = status("a")
    assert (after["phase"], after["attempt"], after["run_id"]) == ("done", 1, before["run_id"])
    assert "nothing to resume" in dist_train("resume", "a").stdout


def test_a_detached_run_is_found_followed_cancelled_and_stays_ended(here: Path) -> None:
    (here / "sleep.py").write_text(_SLEEPS)
    handle = dist_train("launch", "--detach", "--device", "cpu", "sleep.py").stdout.strip()
    await_phase(handle, "running")
    deadline = time.monotonic() + 30
    while polled("logs", handle, "--grep", "^.rank 0. up$") != "[rank 0] up\n":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    refused = dist_train("resume", handle)
    assert (refused.code, "at work already" in refused.stderr) == (78, True)
    cancelled = dist_train("cancel", handle)
    assert cancelled.code == 0, cancelled.stderr
    assert "has ended" in cancelled.stdout
    assert "has ended already" in dist_train("cancel").stdout


def test_a_run_whose_launcher_was_killed_is_resumed(here: Path) -> None:
    (here / "train.py").write_text("import os, time\nif not os.path.exists('flag'): time.sleep(100)\n")
    words = ["launch", "--name", "a", "--device", "cpu", "train.py"]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "dist_train.cli.main", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        await_phase("a", "running")
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
        deadline = time.monotonic() + 30
        while status("a")["phase"] == "running":
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        launcher.kill()
    (here / "flag").write_text("")
    again = dist_train("resume", "a")
    assert again.code == 0, again.stderr
    assert status("a")["phase"] == "done"
