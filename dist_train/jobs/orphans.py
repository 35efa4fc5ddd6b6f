"""Processes that a run has left behind: found by the run id in their environment, killed by pid.

An agent kills its ranks' process groups; after `kill -9` of an agent the kernel ends the ranks, but not
the processes that they had started. A name or a pid may belong to another program; the run id in
/proc/PID/environ does not.

multiprocessing's resource trackers are not killed: each removes what its program has leaked. It reads a
pipe, and ends by itself when the last process that holds the pipe has ended, however that ended. Killed with
the others, it would leave leaked shared memory in /dev/shm until the next boot. torch has one of its own for
its sharing strategy file_system.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from dist_train import env

_TRIES_S = 2.0
_TRACKER_PATIENCE_S = 5.0
_LOOK_S = 0.01
_TRACKER = "from multiprocessing.resource_tracker import main;main("
_TORCH_TRACKER = "torch_shm_manager"
_waiting: dict[int, threading.Thread] = {}


def find_processes(run_id: str, node_rank: int | None = None) -> list[int]:
    """Running processes of this run (and node), as far as this user may read them; not this process."""
    wanted = [f"{env.RUN_ID}={run_id}"]
    if node_rank is not None:
        wanted.append(f"{env.NODE_RANK}={node_rank}")
    entries = [os.fsencode(entry) for entry in wanted]
    return [pid for pid in running_processes() if pid != os.getpid() and _has_in_environ(pid, entries)]


def running_processes() -> list[int]:
    """Return the pids of all processes, those of ended ones that nobody has reaped yet included."""
    try:
        return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    except OSError:  # not Linux
        import psutil

        return psutil.pids()


def _has_in_environ(pid: int, entries: list[bytes]) -> bool:
    try:
        # Not by psutil, which takes several times as long: each start of ranks waits for this.
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, is a zombie, or is another user's; or this is not Linux
        return sys.platform != "linux" and _has_by_psutil(pid, entries)
    return all(entry in environ for entry in entries)


def _has_by_psutil(pid: int, entries: list[bytes]) -> bool:
    import psutil

    try:
        environ = psutil.Process(pid).environ()
    except (psutil.Error, OSError):
        return False
    return {os.fsencode(f"{name}={value}") for name, value in environ.items()}.issuperset(entries)


def end_processes(
    run_id: str,
    node_rank: int | None = None,
    before: Callable[[int], None] | None = None,
    keep: Collection[int] = (),
) -> list[int]:
    """Send SIGKILL to them, also to those that they start meanwhile; returns the pids.

    Resource trackers are left to end by themselves: see wait_for_trackers.

    Args:
        run_id: of the run.
        node_rank: of the node whose processes are meant; None means all that run on this machine.
        before: called with each pid before it is killed.
        keep: pids that are not killed.
    """
    ended: list[int] = []
    trackers: set[int] = set()
    deadline = time.monotonic() + _TRIES_S
    while left := [pid for pid in find_processes(run_id, node_rank) if pid not in {*trackers, *keep}]:
        if time.monotonic() > deadline:
            break
        for pid in left:
            if is_resource_tracker(pid):
                trackers.add(pid)
                continue
            if before is not None and pid not in ended:
                before(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            if pid not in ended:
                ended.append(pid)
        if set(left) - trackers:
            time.sleep(0.02)
    for pid in trackers:
        let_tracker_end(pid)
    return ended


def command_line(pid: int) -> list[str]:
    """The arguments of a running process; empty where it has ended or is another user's."""
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace")
    except OSError:
        return [] if sys.platform == "linux" else _command_by_psutil(pid)
    return text.split("\0") if text else []


def is_resource_tracker(pid: int) -> bool:
    """Whether this process is a resource tracker that runs."""
    words = command_line(pid)
    return any(word.startswith(_TRACKER) for word in words) or is_torch_tracker(words)


def is_torch_tracker(words: list[str]) -> bool:
    """Whether this is the command line of the process that removes torch's shared memory."""
    return bool(words) and os.path.basename(words[0]) == _TORCH_TRACKER


def let_tracker_end(pid: int, patience_s: float = _TRACKER_PATIENCE_S) -> None:
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


def _command_by_psutil(pid: int) -> list[str]:
    import psutil

    try:
        return psutil.Process(pid).cmdline()
    except (psutil.Error, OSError):
        return []
