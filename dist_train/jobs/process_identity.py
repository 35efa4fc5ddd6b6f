"""Which process a pid means: a pid is used again, by another process."""

from __future__ import annotations

import os
import time
from pathlib import Path


def started_at(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the boot; None where it has ended."""
    try:
        # The name in brackets may hold anything, so the fields are counted behind it (proc_pid_stat(5)).
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(fields[18])


def process_age_s() -> float:
    """Seconds since this process was started, its interpreter's start included; to 10 ms."""
    ticks = started_at(os.getpid())
    if ticks is None:
        return 0.0
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
