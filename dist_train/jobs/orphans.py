"""Processes that a run has left behind: found by the run id in their environment, killed by pid.

An agent kills its ranks' process groups; after `kill -9` of an agent the kernel ends the ranks, but not
the processes that they had started. A name or a pid may belong to another program; the run id in
/proc/PID/environ does not.
"""

from __future__ import annotations

import os
import signal
import time

from dist_train import env

_TRIES_S = 2.0


def find_processes(run_id: str, node_rank: int | None = None) -> list[int]:
    """Running processes of this run (and node), as far as this user may read them; not this process."""
    import psutil  # here, since commands that need no process list must start quickly

    def environ(process: psutil.Process) -> dict[str, str]:
        try:
            return process.environ()
        except (psutil.Error, OSError):  # it has ended, is a zombie, or is another user's
            return {}

    wanted = {env.RUN_ID: run_id}
    if node_rank is not None:
        wanted[env.NODE_RANK] = str(node_rank)
    return [
        process.pid
        for process in psutil.process_iter()
        if process.pid != os.getpid() and wanted.items() <= environ(process).items()
    ]


def end_processes(run_id: str, node_rank: int | None = None) -> list[int]:
    """Send SIGKILL to them, also to those that they start meanwhile; returns the pids."""
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
