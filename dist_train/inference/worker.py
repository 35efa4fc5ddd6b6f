"""A worker as its parent holds it: started, spoken to, found dead, ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from dist_train.inference.birth import begin
from dist_train.inference.parcel import unpack

# A dead worker's pipe may be seen closed a moment before its exit status is there.
STATUS_S = 10.0


class Worker:
    """One process on one device. It has begun when `ready` is set.

    Args:
        device: `cpu`, `cuda:1`.
        threads: its CPU threads.
        opening: the packed model.
        start_method: of multiprocessing.
    """

    def __init__(self, device: str, threads: int, opening: memoryview, start_method: str) -> None:
        self.device = device
        self.ready = False
        context: Any = multiprocessing.get_context(start_method)
        ours, theirs = context.Pipe(duplex=True)
        self.connection: Connection = ours
        # The kernel ends a child with the *thread* that made it: only the main one lives as long as we.
        main = threading.current_thread() is threading.main_thread()
        arguments = (theirs, device, threads, os.getpid() if main else None)
        self.process = context.Process(target=begin, args=arguments, name=f"predictor {device}", daemon=True)
        with _no_interrupt(start_method):
            self.process.start()
        theirs.close()
        # It reads only once it has imported torch: others can begin, and work, meanwhile.
        self._opening = threading.Thread(target=self.send, args=(opening,), daemon=True)
        self._opening.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        pid: int = self.process.pid
        return pid

    def send(self, parcel: memoryview) -> bool:
        """False where it is dead."""
        try:
            self.connection.send_bytes(parcel)
        except OSError:
            return False
        return True

    @property
    def signs(self) -> tuple[Connection, int]:
        """What to wait for: its words, and its death (a child of its own may keep the pipe open)."""
        return self.connection, self.process.sentinel

    def receive(self) -> Any | None:
        """The next message, or None where there is none and will be none: it is dead."""
        try:
            return unpack(self.connection.recv_bytes()) if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def fate(self) -> str:
        """How a dead one died: `worker 4711 on cuda:1 was ended by signal 9 (SIGKILL)`."""
        self.process.join(STATUS_S)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
            return f"worker {self.pid} on {self.device} was ended by signal {-code} ({name})"
        return f"worker {self.pid} on {self.device} ended with code {code}"

    @property
    def killed(self) -> bool:
        """Whether a dead one was ended by a signal."""
        code = self.process.exitcode
        return code is not None and code < 0

    def end(self) -> None:
        """Kill it: it holds nothing that anybody will miss, and one that hangs must not hold us up."""
        # Not terminate(): under our agent SIGTERM is blocked, and children inherit that.
        self.process.kill()
        self._opening.join()
        self.connection.close()
        self.process.join()
        self.process.close()


@contextmanager
def _no_interrupt(start_method: str) -> Iterator[None]:
    """A process that is started here has SIGINT blocked, until it can ignore it; ours waits meanwhile."""
    if start_method != "fork":
        # multiprocessing starts it with the first process, and takes the block away while it does.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
