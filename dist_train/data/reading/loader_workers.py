"""End loader workers with the iteration, at the process's exit, and when the process is killed."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dist_train.jobs.parent_death_signal import end_with_parent

_open: weakref.WeakSet[Any] = weakref.WeakSet()


class WorkerStart:
    """Initialise a worker: freeze the parent's garbage, and get SIGKILL when the parent dies.

    torch's own watchdog checks only every 5 s, and never during a read.
    """

    def __init__(self, user_init: Callable[[int], None] | None, start_method: str) -> None:
        self.user_init = user_init
        self.parent = os.getpid()
        # The kernel sends the signal when the creating *thread* ends, and a fork server is not the parent.
        self.ends_with_parent = (
            start_method != "forkserver" and threading.current_thread() is threading.main_thread()
        )

    def __call__(self, worker_id: int) -> None:
        # A forked worker inherits the rank's garbage. Collecting it here would run destructors that join
        # threads which a fork does not copy (a TCPStore's): the worker would hang, and its rank with it.
        gc.freeze()
        if self.ends_with_parent:
            end_with_parent(self.parent, signal.SIGKILL)
        if self.user_init is not None:
            self.user_init(worker_id)


def track(iterator: Any) -> None:
    """Register a DataLoader iterator with workers, so that it is closed at exit."""
    _open.add(iterator)


def close(iterator: Any) -> None:
    """End an iterator's workers now; kill those that do not exit.

    torch ends them by SIGTERM, which a worker may not react to, in a call that holds the interpreter's lock:
    without SIGKILL the interpreter's exit would join it for ever.
    """
    _open.discard(iterator)
    iterator._shutdown_workers()
    for worker in iterator._workers:
        if worker.is_alive():
            worker.kill()
            worker.join()


def close_in(process: int, iterator: Any) -> None:
    """`close`, in the process that started the workers: a forked child has only a copy of the iterator."""
    if os.getpid() == process and iterator in _open:
        close(iterator)


@atexit.register
def _close_all() -> None:
    # Runs before torch marks the interpreter as exiting and before multiprocessing joins its children.
    for iterator in list(_open):
        close(iterator)
