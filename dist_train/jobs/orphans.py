"""Processes that a run has left behind: found by the run id in their environment, ended by pid.

A rank's children die with its process group while an agent lives to end it; after `kill -9` of an
agent the kernel ends the ranks, but not what they had started. Names lie and pids are reused; the
run id in /proc/PID/environ does neither.
"""

from __future__ import annotations

import os
import signal
import time

from dist_train import env

_TRIES_S = 2.0


def find_processes(run_id: str, node_rank: int | None = None) -> list[int]:
    """Living processes of this run (and node) that this user may see; zombies and this one excluded."""
    wanted = [f"{env.RUN_ID}={run_id}".encode()]
    if node_rank is not None:
        wanted.append(f"{env.NODE_RANK}={node_rank}".encode())
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _has(name, wanted):
            found.append(int(name))
    return found


def _has(pid: str, wanted: list[bytes]) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return all(word in words for word in wanted)


def end_processes(run_id: str, node_rank: int | None = None) -> list[int]:
    """SIGKILL them, also what they start meanwhile; returns the pids that were ended."""
    ended: list[int] = []
    deadline = time.monotonic() + _TRIES_S
    while (left := find_processes(run_id, node_rank)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if pid not in ended:
                ended.append(pid)
        time.sleep(0.02)
    return ended
