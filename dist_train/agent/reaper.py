"""Process 1 of a container is the parent of every orphan in it: it must ask for their end.

Only for that: a rank's end is asked for by who started it (workers.py), and what the agent itself runs
by subprocess, in its own session, by subprocess. So never waitpid(-1).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Container

logger = logging.getLogger(__name__)
_EVERY_S = 1.0


def start(ours: Callable[[], Container[int]]) -> None:
    """Begin to reap, where this is process 1; `ours` gives the pids of ranks that nobody has reaped yet."""
    if os.getpid() == 1:
        threading.Thread(target=_loop, args=(ours,), name="agent-reaper", daemon=True).start()


def _loop(ours: Callable[[], Container[int]]) -> None:
    before: set[int] = set()
    while True:
        time.sleep(_EVERY_S)
        before = reap(before, ours)


def reap(before: set[int], ours: Callable[[], Container[int]]) -> set[int]:
    """Reap the orphans that were zombies at the last look already; returns what it has found at this one.

    A rank that has just been forked may not be among `ours` yet: it cannot have been a zombie before.
    """
    found = zombies()
    known = ours()
    for pid in found & before:
        if pid not in known:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                continue
            logger.info("reaped the orphan %d", pid)
    return found


def zombies() -> set[int]:
    """This process's ended children of other sessions than its own."""
    me, session = os.getpid(), os.getsid(0)
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent, _, its_session = file.read().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if state == "Z" and int(parent) == me and int(its_session) != session:
            found.add(int(name))
    return found
