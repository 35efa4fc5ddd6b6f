"""The state of a run by its own records: the lease of its owner, else its last event."""

from __future__ import annotations

import socket
import time

from dist_train.errors import ExitCode
from dist_train.jobs.launcher import JobState
from dist_train.jobs.process_identity import started_at
from dist_train.rundir import RunDir
from dist_train.rundir.events import newest_event
from dist_train.rundir.file_age import file_age_s
from dist_train.rundir.records import read_json
from dist_train.rundir.this_machine import this_machine

# As in agent/timeouts.py: an owner that has not written its lease for this long has ended.
_LEASE_LOST_S = 30.0
_BEAT_SEEN_S = 7.0


def lease_state(run: RunDir) -> JobState:
    """Running while the owner is alive; else the state by the last event."""
    lease = read_json(run.lease)
    lives = None if lease is None else owner_lives(run, lease)
    if lease is not None and lives is None:
        where = f"its agent 0 is on {lease['host']}, and whether it lives cannot be seen from here"
        return JobState("unknown", "lease", f"{where} without permission to write into {run.path}")
    if lease is not None and lives:
        who = f"in pod {lease.get('pod_name') or lease['pod']}" if lease.get("pod") else f"pid {lease['pid']}"
        return JobState("running", "lease", f"agent 0 is {who} on {lease['host']}")
    try:
        last = newest_event(run)
    except OSError as error:
        return JobState("unknown", "run directory", f"{run.events.name} cannot be read: {error.strerror}")
    if last is None:
        return JobState("unknown", "run directory", "no event was written")
    match last["kind"]:
        case "finished":
            code = int(last["exit_code"])
            on_request = last.get("stopped") or code in (ExitCode.CANCELLED, ExitCode.INTERRUPTED)
            phase = "done" if code == 0 else "stopped" if on_request else "failed"
            return JobState(phase, "events", str(last.get("why", "")), code)  # type: ignore[arg-type]
        case "preempted":
            code = int(last.get("exit_code", ExitCode.PREEMPTED))
            return JobState("stopped", "events", str(last.get("why", "stopped")), code)
        case "submitted":
            return JobState("pending", "events", "no agent has begun yet")
        case _:
            return JobState("failed", "events", f"its owner is gone; the last event is {last['kind']!r}")


def owner_lives(run: RunDir, lease: dict[str, object]) -> bool | None:
    """Whether the lease's owner is alive: by its process on this machine, else by its heartbeat.

    Not by host name and pid for a pod: its replacement has the same. None where nobody can say: the owner is
    elsewhere, and this user may not write into the run directory.
    """
    if lease.get("pod"):
        return _heartbeat_is_fresh(run)
    if machine := lease.get("machine"):
        if machine != this_machine():
            return _heartbeat_is_fresh(run)
        return started_at(int(str(lease["pid"]))) == lease.get("started")
    if lease.get("host") == socket.gethostname():
        return _has_an_agents_title(run, lease)
    return _heartbeat_is_fresh(run)


def _has_an_agents_title(run: RunDir, lease: dict[str, object]) -> bool:
    """Judge a lease of a release that did not write which process it meant."""
    import psutil  # here, since `dist-train list` must start quickly

    try:
        title = " ".join(psutil.Process(int(str(lease["pid"]))).cmdline())
    except (psutil.Error, OSError):
        return False
    _, names_run, path = title.partition(" run=")
    if names_run and f"/{run.path.name} " not in f"{path} ":
        return False
    return "dist-train agent" in title or "dist_train.agent" in title


def _heartbeat_is_fresh(run: RunDir) -> bool | None:
    age = file_age_s(run.lease, run.control)
    if age is not None:
        return age < _LEASE_LOST_S
    return True if _beats(run) else None


def _beats(run: RunDir) -> bool:
    """Whether a heartbeat is seen: an owner writes one every 5 s."""
    first = _change_mark(run)
    deadline = time.monotonic() + _BEAT_SEEN_S
    while time.monotonic() < deadline:
        time.sleep(0.2)
        if _change_mark(run) != first:
            return run.lease.exists()
    return False


def _change_mark(run: RunDir) -> tuple[int, int]:
    try:
        found = run.lease.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns
