"""The parent's handle of a worker process: start, send, receive, detect its exit, end."""

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

from dist_train.inference.serialization import unpack
from dist_train.inference.worker_bootstrap import start

# The pipe of a dead worker may be closed a moment before its exit status is known.
STATUS_S = 10.0


class Worker:
    """One process on one device. It takes batches once `ready` is set.

    Args:
        device: `cpu`, `cuda:1`.
        threads: its CPU threads.
        packed_model: the model, packed.
        start_method: of multiprocessing.
    """

    def __init__(self, device: str, threads: int, packed_model: memoryview, start_method: str) -> None:
        self.device = device
        self.ready = False
        context: Any = multiprocessing.get_context(start_method)
        ours, theirs = context.Pipe(duplex=True)
        self.connection: Connection = ours
        # The kernel ends a child with the *thread* that started it: only the main one lives as long as we do.
        main = threading.current_thread() is threading.main_thread()
        arguments = (theirs, device, threads, os.getpid() if main else None)
        self.process = context.Process(target=start, args=arguments, name=f"predictor {device}", daemon=True)
        with _no_interrupt(start_method):
            self.process.start()
        theirs.close()
        # It reads only once it has imported torch: meanwhile others can start and work.
        self._sender = threading.Thread(target=self.send, args=(packed_model,), daemon=True)
        self._sender.start()

    @property
    def pid(self) -> int:
        """The process id."""
        pid: int = self.process.pid
        return pid

    def send(self, payload: memoryview) -> bool:
        """Send a message; return False where the worker is dead."""
        try:
            self.connection.send_bytes(payload)
        except OSError:
            return False
        return True

    @property
    def wait_for(self) -> tuple[Connection, int]:
        """What to wait for: its messages, and its exit (a child of its own may keep the pipe open)."""
        return self.connection, self.process.sentinel

    def receive(self) -> Any | None:
        """Return the next message; None where the worker is dead."""
        try:
            return unpack(self.connection.recv_bytes()) if self.connection.poll() else None
        except (EOFError, OSError):
            return None

    def exit_description(self) -> str:
        """Describe the exit of a dead worker: `worker 4711 on cuda:1 was ended by signal 9 (SIGKILL)`."""
        self.process.join(STATUS_S)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
            return f"worker {self.pid} on {self.device} was ended by signal {-code} ({name})"
        return f"worker {self.pid} on {self.device} ended with code {code}"

    @property
    def killed(self) -> bool:
        """Whether a dead worker was ended by a signal."""
        code = self.process.exitcode
        return code is not None and code < 0

    def end(self) -> None:
        """Kill it: it holds nothing that must be kept, and one that hangs must not block the caller."""
        # Not terminate(): a worker that hangs may not react to SIGTERM.
        self.process.kill()
        self._sender.join()
        self.connection.close()
        self.process.join()
        self.process.close()


@contextmanager
def _no_interrupt(start_method: str) -> Iterator[None]:
    """Start a process with SIGINT blocked until it can ignore it; ours is delayed meanwhile."""
    if start_method != "fork":
        # multiprocessing starts it with the first process, and unblocks the signal while it does.
        resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
