"""Loader workers that end when they should: with the iteration, with the process, with its death."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dist_train.jobs.parent import end_with_parent

_open: weakref.WeakSet[Any] = weakref.WeakSet()


class WorkerStart:
    """First acts of a worker: leave the parent's garbage alone, ask to die with the parent.

    torch's own watchdog looks only every 5 s, and never inside a read.
    """

    def __init__(self, user_init: Callable[[int], None] | None, start_method: str) -> None:
        self.user_init = user_init
        self.parent = os.getpid()
        # The kernel sends the signal when the creating *thread* ends, and a fork server is not the parent.
        self.binds = start_method != "forkserver" and threading.current_thread() is threading.main_thread()

    def __call__(self, worker_id: int) -> None:
        # A forked worker inherits the rank's garbage too. Collecting it here runs destructors that join
        # threads which did not come along (a TCPStore's): such a worker hangs, and its rank with it.
        gc.freeze()
        if self.binds:
            end_with_parent(self.parent, signal.SIGKILL)
        if self.user_init is not None:
            self.user_init(worker_id)


def track(iterator: Any) -> None:
    """Remember a DataLoader iterator with workers, so that exit closes it."""
    _open.add(iterator)


def close(iterator: Any) -> None:
    """End an iterator's workers now. Whoever does not leave is killed.

    torch ends stragglers by SIGTERM, which a rank started by our agent has blocked, and so have
    its children: without SIGKILL the interpreter's exit would join them for ever.
    """
    _open.discard(iterator)
    iterator._shutdown_workers()
    for worker in iterator._workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


@atexit.register
def _close_all() -> None:
    # Runs before torch marks the interpreter as leaving and before multiprocessing joins its children.
    for iterator in list(_open):
        close(iterator)
