"""Reap orphans: process 1 of a container is the parent of every orphan in it.

Only orphans: a rank is reaped by who started it (workers), and what the agent itself runs by
subprocess, in the agent's own session, by subprocess. So never waitpid(-1).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path

logger = logging.getLogger(__name__)
_EVERY_S = 1.0


def start(unreaped_ranks: Callable[[], Container[int]]) -> None:
    """Begin to reap, where this is process 1; the callable returns the pids of ranks not yet reaped."""
    if os.getpid() == 1:
        threading.Thread(target=_loop, args=(unreaped_ranks,), name="agent-reaper", daemon=True).start()


def _loop(unreaped_ranks: Callable[[], Container[int]]) -> None:
    before: set[int] = set()
    while True:
        time.sleep(_EVERY_S)
        before = reap(before, unreaped_ranks)


def reap(before: set[int], unreaped_ranks: Callable[[], Container[int]]) -> set[int]:
    """Reap the orphans that were zombies at the last call already; returns the zombies found at this one.

    A rank that has just been forked may not be among `unreaped_ranks` yet: it was no zombie at the last call.
    """
    found = zombies()
    ranks = unreaped_ranks()
    for pid in found & before:
        if pid not in ranks:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            logger.info("reaped the orphan %d", pid)
    return found


def zombies() -> set[int]:
    """Return this process's ended children of other sessions than its own. Linux only."""
    parent, session = str(os.getpid()).encode(), str(os.getsid(0)).encode()
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            # The name in brackets may hold anything, so the fields are counted behind it (proc_pid_stat(5)).
            stat = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if stat[0] == b"Z" and stat[1] == parent and stat[3] != session:
            found.add(int(name))
    return found
