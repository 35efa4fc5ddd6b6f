"""Wrong input as one table: exit code and message; no traceback of ours, no files left."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from conftest import WORKLOADS, nothing_left
from warm_commands.warm_launch import launch_cli

from dist_train import env
from dist_train.rundir import RunDir

pytestmark = pytest.mark.multiprocess
GOOD = str(WORKLOADS / "digits.yaml")


def broken(folder: Path, old: str, new: str) -> str:
    """The digits config with one change."""
    text = Path(GOOD).read_text()
    assert old in text
    (folder / "broken.yaml").write_text(text.replace(old, new))
    return str(folder / "broken.yaml")


TABLE = [
    # id, arguments of `launch` (as a function of the folder), exit code, parts of stderr
    (
        "unknown key",
        lambda f: [broken(f, "schedule:", "shedule:")],
        78,
        ["shedule", "schedule", "broken.yaml:"],
    ),
    ("wrong type", lambda f: [broken(f, "workers: 2", "workers: many")], 78, ["data.workers", "many"]),
    ("missing file", lambda f: ["nothing.yaml"], 66, ["no such file", "nothing.yaml"]),
    ("missing script", lambda f: ["nothing.py"], 66, ["no such file", "nothing.py"]),
    (
        "target that does not import",
        lambda f: [broken(f, "dist_train.datasets.digits:Digits", "dist_train.datasets.digitz:Digits")],
        78,
        ["dist_train.datasets.digitz", "digits"],
    ),
    (
        "more GPUs than exist",
        lambda f: ["--device", "cuda", "--nodes", "2", "--gpus-per-node", "64", GOOD],
        78,
        ["128 GPUs were asked for", "visible", "--device cpu"],
    ),
    (
        "existing run",
        lambda f: ["--name", "taken", GOOD],
        78,
        ["is a run already", "dist-train resume", "--name"],
    ),
    ("unwritable run directory", lambda f: ["--run-dir", "file/run", GOOD], 78, ["file/run", "--run-dir"]),
    ("option of another launcher", lambda f: ["--no-such-option", GOOD], 2, ["--no-such-option"]),
    ("given twice", lambda f: ["--nodes", "2", GOOD, "--nodes", "3"], 2, ["--nodes is given twice: 2 and 3"]),
    ("strange word", lambda f: [GOOD, "epochs", "3"], 2, ["'epochs'", "override"]),
    ("override of nothing", lambda f: [GOOD, "trainer.epoch=3"], 78, ["trainer.epoch", "epochs"]),
    (
        "checkpoints at a URL of no bucket",
        lambda f: [GOOD, "checkpoint.directory=s3://"],
        78,
        ["checkpoint.directory", "names no bucket", "s3://BUCKET/PREFIX"],
    ),
    (
        "checkpoints at a URL with credentials",
        lambda f: [GOOD, "checkpoint.directory=s3://key:word@bucket/runs"],
        78,
        ["checkpoint.directory", "has credentials in it", "the environment"],
    ),
    (
        "checkpoints at an unknown scheme",
        lambda f: [GOOD, "checkpoint.directory=s4://bucket/runs"],
        78,
        ["checkpoint.directory", "s4://", "az, gs, s3"],
    ),
    (
        "checkpoints at a path",
        lambda f: [GOOD, "checkpoint.directory=/data/runs"],
        78,
        ["checkpoint.directory", "/data/runs", "--run-dir"],
    ),
    ("secret by --env", lambda f: ["--env", "HF_TOKEN=x", GOOD], 2, ["HF_TOKEN", "--secret"]),
]


@pytest.mark.proves(
    "Wrong input is found before any process starts and leaves nothing behind",
    limits="the table in that file",
)
@pytest.mark.parametrize(
    ("words", "code", "parts"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE]
)
def test_found_before_any_process_starts(tmp_path: Path, words, code: int, parts: list[str]) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    (tmp_path / "runs" / "taken" / "job.json").write_text("{}")
    (tmp_path / "file").write_text("")
    argv = words(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    done = launch_cli(["launch", *argv], cwd=tmp_path, timeout_s=30)
    assert done.code == code, done
    for word in parts:
        assert word in done.stderr, done
    assert "Traceback" not in done.stderr, done
    assert sorted(tmp_path.rglob("*")) == before, "a refused launch leaves nothing behind"
    assert done.stdout == ""


@pytest.mark.proves(
    "A port in use is named at once, with the process that holds it",
)
def test_a_port_in_use_is_named_within_seconds_with_its_owner(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["launch", "--name", "p", "--device", "cpu", "--gpus-per-node", "2", "--max-restarts", "0"]
        done = launch_cli(
            [*words, "--init-method", f"tcp://127.0.0.1:{port}", GOOD], cwd=tmp_path, timeout_s=60
        )
    assert done.code == 69, done
    assert f"{port}" in done.stderr
    assert f"pid {os.getpid()}" in done.stderr, done
    assert done.seconds < 20, done
    assert "Traceback" not in done.stderr, done


def agent(run: RunDir, node: int, rdzv: str, join_s: float) -> tuple[int, str, float]:
    """Run one agent as a launcher starts it: exit code, output, seconds."""
    run.create()
    (run.control / "key").write_bytes(b"key")
    script = run.path / "train.py"
    script.write_text("print('never')")
    environ: Mapping[str, str] = {
        **os.environ,
        env.RUN_ID: run.path.name,
        env.RUN_DIR: str(run.path),
        env.LAUNCHER: "hand",
        env.NNODES: "2",
        env.NPROC_PER_NODE: "1",
        env.NODE_RANK: str(node),
        env.RDZV: rdzv,
        env.JOIN_TIMEOUT_S: str(join_s),
    }
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "dist_train.agent", "script", str(script)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=90,
    )
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


@pytest.mark.proof
def test_a_listener_that_never_answers_is_named_and_bounded(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "silent")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        code, output, seconds = agent(run, 1, f"tcp://127.0.0.1:{port}", join_s=1)
    assert code == 69, output
    assert f"127.0.0.1:{port} accepts connections but sends nothing" in output
    assert "Traceback" not in output
    assert seconds < 45  # the import of torch on a busy machine is most of it


@pytest.mark.proves(
    "A node that does not come is named every 15 s",
)
@pytest.mark.proof
def test_a_missing_node_is_named_every_15_s_and_given_up_at_the_deadline(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "missing")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, output, seconds = agent(run, 0, f"tcp://127.0.0.1:{port}", join_s=16)
    assert code == 69, output
    assert "waiting for node 1 since 15 s; here: node 0" in output
    assert "node 1 never came in 16 s" in output
    assert "Traceback" not in output
    assert seconds < 25
    assert nothing_left("missing")


FULL_DISK = """
    mount -t tmpfs -o size=8m tmpfs {disk} || exit 99
    {python} -P -m dist_train.cli.main launch {config} --run-dir {disk}/run --device cpu --gpus-per-node 2 \
        model.args.width=128 model.args.dropout=0 trainer.steps=30 checkpoint.every_steps=7 > out.txt 2>&1
    echo "code $?"
    ls {disk}/run/checkpoints
    {python} -P -m dist_train.cli.main checkpoint verify {disk}/run
    echo "verified $?"
"""


@pytest.mark.proves(
    "A full disk while saving: exit code 74, and the last good checkpoint stays",
    limits="8 MiB tmpfs",
)
def test_a_full_disk_while_saving_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.fail("needs root and unshare(1), for a tmpfs in a private mount namespace")
    disk = tmp_path / "disk"
    disk.mkdir()
    script = textwrap.dedent(FULL_DISK).format(
        disk=disk, python=sys.executable, config=WORKLOADS / "text.yaml"
    )
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    output = (tmp_path / "out.txt").read_text()
    assert "code 74" in done.stdout, done.stdout + done.stderr + output
    assert "step-00000007" in done.stdout
    assert "step-00000014" not in done.stdout
    assert "verified 0" in done.stdout, done.stdout + done.stderr
    assert "No space left" in output or "free" in output, output
    assert "Traceback" not in output, output
