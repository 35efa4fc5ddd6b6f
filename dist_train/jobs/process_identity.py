"""Which process a pid means: a pid is used again, by another process, in another container or boot."""

from __future__ import annotations

import os
from pathlib import Path


def this_machine() -> str:
    """Name the kernel's boot and the namespace in which this process's pids have their meaning."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def started_at(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the boot; None where it has ended."""
    try:
        # The name in brackets may hold anything, so the fields are counted behind it (proc_pid_stat(5)).
        state, *fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in (b"Z", b"X") else int(fields[18])
