"""multiprocessing's resource trackers: each removes what a program has leaked, once all of it is gone.

A tracker reads a pipe, and ends by itself when the last process that holds the pipe has ended, however that
ended. Killed with the others, it would leave leaked shared memory in /dev/shm until the next boot.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

TRACKER_PATIENCE_S = 5.0
_LOOK_S = 0.01
_PROGRAM = "from multiprocessing.resource_tracker import main;main("
_waiting: dict[int, threading.Thread] = {}


def command_line(pid: int) -> list[str]:
    """The arguments of a running process; empty where it has ended or is another user's."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return [] if sys.platform == "linux" else _by_psutil(pid)
    return text.split("\0") if text else []


def is_resource_tracker(pid: int) -> bool:
    """Whether this process is a resource tracker that runs."""
    return any(word.startswith(_PROGRAM) for word in command_line(pid))


def let_tracker_end(pid: int, patience_s: float = TRACKER_PATIENCE_S) -> None:
    """Kill a resource tracker once its patience is over; does not wait, see wait_for_trackers.

    Args:
        pid: of a tracker whose program has ended.
        patience_s: seconds until it is killed.
    """
    if pid not in _waiting:
        thread = threading.Thread(target=_watch, args=(pid, patience_s), name=f"tracker-{pid}", daemon=True)
        _waiting[pid] = thread
        thread.start()


def wait_for_trackers() -> None:
    """Wait until all of them have ended, at most as long as each has."""
    for thread in list(_waiting.values()):
        thread.join()


def _watch(pid: int, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while is_resource_tracker(pid):  # asked each time: its pid may be another process's meanwhile
        if time.monotonic() > deadline:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            break
        time.sleep(_LOOK_S)
    _waiting.pop(pid, None)


def _by_psutil(pid: int) -> list[str]:
    import psutil

    try:
        return psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return []
