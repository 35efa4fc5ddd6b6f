"""The state of a run by its records: the lease while its owner is alive, else the last event."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from dist_train.jobs import run_state
from dist_train.jobs.process_identity import started_at
from dist_train.jobs.run_state import lease_state
from dist_train.rundir import RunDir
from dist_train.rundir.events import append_event
from dist_train.rundir.records import write_json_atomic
from dist_train.rundir.this_machine import this_machine


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


@pytest.mark.parametrize("skew_s", [-3600, 3600])
def test_a_wrong_clock_of_this_host_changes_nothing(
    run: RunDir, skew_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_event(run, "attempt_started", 0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + skew_s)
    lease(run, "elsewhere", 1)
    assert lease_state(run).phase == "running"
    os.utime(run.lease, (now - 31, now - 31))
    assert lease_state(run).phase == "failed"
    assert not list(run.control.glob(".clock-*"))


def test_whose_heartbeat_can_only_be_read_is_running_once_it_beats_and_else_unknown(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_event(run, "attempt_started", 0)
    lease(run, "elsewhere", 1)
    monkeypatch.setattr(run_state, "_BEAT_SEEN_S", 0.3)
    monkeypatch.setattr(run_state, "file_age_s", lambda path, folder: None)  # a reader without rights
    state = lease_state(run)
    assert (state.phase, state.source) == ("unknown", "lease")
    monkeypatch.setattr(run_state, "_BEAT_SEEN_S", 20.0)
    beat = threading.Timer(0.2, lease, (run, "elsewhere", 1))
    beat.start()
    assert lease_state(run).phase == "running"
    beat.join()


def owned(run: RunDir, **changes: object) -> None:
    """The lease of a living agent: this process."""
    mine = {"machine": this_machine(), "started": started_at(os.getpid())}
    write_json_atomic(run.lease, {"host": socket.gethostname(), "pid": os.getpid(), **mine, **changes})


def test_a_pid_that_another_process_has_by_now_is_no_owner(run: RunDir) -> None:
    """Also that of another run's agent."""
    append_event(run, "preempted", 0)
    owned(run)
    assert lease_state(run).phase == "running"
    started = started_at(os.getpid())
    assert started is not None
    owned(run, started=started - 1)
    assert lease_state(run).phase == "stopped"


def test_a_pid_of_another_boot_or_container_says_nothing(run: RunDir) -> None:
    append_event(run, "preempted", 0)
    owned(run, machine="another boot", started=1)
    assert lease_state(run).phase == "running", "its heartbeat is fresh"
    os.utime(run.lease, (time.time() - 31, time.time() - 31))
    assert lease_state(run).phase == "stopped"


def test_an_agent_of_another_run_is_no_owner_of_an_older_releases_lease(run: RunDir) -> None:
    append_event(run, "preempted", 0)
    other = subprocess.Popen(["dist-train agent node=0 run=/runs/other", "30"], executable="/bin/sleep")
    try:
        deadline = time.monotonic() + 5
        while b"dist-train" not in Path(f"/proc/{other.pid}/cmdline").read_bytes():
            assert time.monotonic() < deadline
        lease(run, socket.gethostname(), other.pid)
        assert lease_state(run).phase == "stopped"
    finally:
        other.kill()
        other.wait()


def test_an_owner_that_has_ended_is_none_though_nobody_has_waited_for_it(run: RunDir) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert started_at(zombie.pid) is None
    zombie.wait()
    assert started_at(zombie.pid) is None
