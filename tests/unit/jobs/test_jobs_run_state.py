"""The state of a run by its records: the lease while its owner is alive, else the last event."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from dist_train.jobs.run_state import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.records import write_json_atomic


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "a")
    made.create()
    return made


@pytest.mark.parametrize(
    ("events", "phase", "code"),
    [
        ([], "unknown", None),
        ([("submitted", {})], "pending", None),
        ([("submitted", {}), ("finished", {"exit_code": 0})], "done", 0),
        ([("submitted", {}), ("finished", {"exit_code": 3})], "failed", 3),
        ([("submitted", {}), ("finished", {"exit_code": 77})], "stopped", 77),
        ([("submitted", {}), ("preempted", {})], "stopped", 75),
        ([("submitted", {}), ("preempted", {"exit_code": 130})], "stopped", 130),
        ([("submitted", {}), ("preempted", {}), ("checkpoint_committed", {})], "stopped", 75),
        ([("submitted", {}), ("attempt_started", {})], "failed", None),
        ([("finished", {"exit_code": 3}), ("submitted", {})], "pending", None),
    ],
)
def test_the_last_event_has_the_end(run: RunDir, events: Any, phase: str, code: int | None) -> None:
    for kind, fields in events:
        append_event(run, kind, 0, **fields)
    state = lease_state(run)
    assert (state.phase, state.exit_code) == (phase, code)


def lease(run: RunDir, host: str, pid: int) -> None:
    write_json_atomic(run.lease, {"host": host, "pid": pid})


def test_a_running_owner_on_this_host(run: RunDir) -> None:
    append_event(run, "finished", 0, exit_code=0)
    owner = subprocess.Popen(["dist-train agent node=0", "30"], executable="/bin/sleep")
    try:
        deadline = time.monotonic() + 5
        while b"dist-train" not in Path(f"/proc/{owner.pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline
        lease(run, socket.gethostname(), owner.pid)
        state = lease_state(run)
        assert (state.phase, state.source) == ("running", "lease")
        assert str(owner.pid) in state.detail
    finally:
        owner.kill()
        owner.wait()
    assert lease_state(run).phase == "done"


def test_a_reused_pid_is_no_owner(run: RunDir) -> None:
    append_event(run, "preempted", 0)
    lease(run, socket.gethostname(), os.getpid())
    assert lease_state(run).phase == "stopped"


def test_an_owner_on_another_host_is_alive_by_its_heartbeat(run: RunDir) -> None:
    append_event(run, "attempt_started", 0)
    lease(run, "elsewhere", 1)
    assert lease_state(run).phase == "running"
    os.utime(run.lease, (time.time() - 31, time.time() - 31))
    assert lease_state(run).phase == "failed"


def test_a_pod_is_alive_by_its_heartbeat_on_any_host(run: RunDir) -> None:
    """Its replacement has the same host name and pid."""
    append_event(run, "attempt_started", 0)
    owner = {"host": socket.gethostname(), "pid": 1, "pod": "uid-1", "pod_name": "train-0-x7"}
    write_json_atomic(run.lease, owner)
    state = lease_state(run)
    assert (state.phase, state.detail) == (
        "running",
        f"agent 0 is in pod train-0-x7 on {socket.gethostname()}",
    )
    os.utime(run.lease, (time.time() - 31, time.time() - 31))
    assert lease_state(run).phase == "failed"
