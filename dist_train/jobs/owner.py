"""Where a run is, from its own records alone: the lease of its owner, else how it ended."""

from __future__ import annotations

import socket
import time

from dist_train.errors import ExitCode
from dist_train.jobs.launcher import JobState
from dist_train.rundir import RunDir
from dist_train.rundir.events import read_events
from dist_train.rundir.records import read_json

# As agent/bounds.py has it: an owner that has not written its lease for this long is gone.
_LEASE_LOST_S = 30.0


def lease_state(run: RunDir) -> JobState:
    """Running while the owner lives; else what the last event says."""
    lease = read_json(run.lease)
    if lease is not None and owner_lives(run, lease):
        who = f"in pod {lease.get('pod_name') or lease['pod']}" if lease.get("pod") else f"pid {lease['pid']}"
        return JobState("running", "lease", f"agent 0 is {who} on {lease['host']}")
    last = None
    for event in read_events(run):
        last = event
    if last is None:
        return JobState("unknown", "run directory", "no event was written")
    match last["kind"]:
        case "finished":
            code = int(last["exit_code"])
            phase = "done" if code == 0 else "stopped" if code == ExitCode.CANCELLED else "failed"
            return JobState(phase, "events", str(last.get("why", "")), code)  # type: ignore[arg-type]
        case "preempted":
            return JobState("stopped", "events", "saved and stopped", int(ExitCode.PREEMPTED))
        case "submitted":
            return JobState("pending", "events", "no agent has begun yet")
        case _:
            return JobState("failed", "events", f"its owner is gone; the last event is {last['kind']!r}")


def owner_lives(run: RunDir, lease: dict[str, object]) -> bool:
    """Whether the lease's owner is at work: by its pid on this host, else by the age of its heartbeat.

    Host name and pid say nothing of a pod: those of the one that takes its place are the same.
    """
    if lease.get("host") == socket.gethostname() and not lease.get("pod"):
        try:
            with open(f"/proc/{lease['pid']}/cmdline", "rb") as file:
                title = file.read()
        except OSError:
            return False
        return b"dist-train agent" in title or b"dist_train.agent" in title
    return time.time() - run.lease.stat().st_mtime < _LEASE_LOST_S
