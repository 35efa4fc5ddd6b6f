"""The state of a run by its own records: the lease of its owner, else its last event."""

from __future__ import annotations

import socket
import time

from dist_train.errors import ExitCode
from dist_train.jobs.launcher import JobState
from dist_train.rundir import RunDir
from dist_train.rundir.events import newest_event
from dist_train.rundir.records import read_json

# As in agent/timeouts.py: an owner that has not written its lease for this long has ended.
_LEASE_LOST_S = 30.0


def lease_state(run: RunDir) -> JobState:
    """Running while the owner is alive; else the state by the last event."""
    lease = read_json(run.lease)
    if lease is not None and owner_lives(run, lease):
        who = f"in pod {lease.get('pod_name') or lease['pod']}" if lease.get("pod") else f"pid {lease['pid']}"
        return JobState("running", "lease", f"agent 0 is {who} on {lease['host']}")
    last = newest_event(run)
    if last is None:
        return JobState("unknown", "run directory", "no event was written")
    match last["kind"]:
        case "finished":
            code = int(last["exit_code"])
            phase = "done" if code == 0 else "stopped" if code == ExitCode.CANCELLED else "failed"
            return JobState(phase, "events", str(last.get("why", "")), code)  # type: ignore[arg-type]
        case "preempted":
            code = int(last.get("exit_code", ExitCode.PREEMPTED))
            return JobState("stopped", "events", "saved and stopped", code)
        case "submitted":
            return JobState("pending", "events", "no agent has begun yet")
        case _:
            return JobState("failed", "events", f"its owner is gone; the last event is {last['kind']!r}")


def owner_lives(run: RunDir, lease: dict[str, object]) -> bool:
    """Whether the lease's owner is alive: by its pid on this host, else by the age of its heartbeat.

    Not by host name and pid for a pod: its replacement has the same.
    """
    import psutil  # here, since `dist-train list` must start quickly

    if lease.get("host") == socket.gethostname() and not lease.get("pod"):
        try:
            title = " ".join(psutil.Process(int(str(lease["pid"]))).cmdline())
        except (psutil.Error, OSError):
            return False
        return "dist-train agent" in title or "dist_train.agent" in title
    return time.time() - run.lease.stat().st_mtime < _LEASE_LOST_S
