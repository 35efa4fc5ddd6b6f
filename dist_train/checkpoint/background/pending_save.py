"""A save that is under way: the thread that writes it, and how another thread waits for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dist_train.checkpoint.long_work import keep_alive
from dist_train.checkpoint.save_results import Committed

logger = logging.getLogger(__name__)

# How often a thread that waits asks whether the other one goes on; a rank that only waits for rank 0 hears
# of it every half second.
_ASK_EVERY_S = 0.1


class PendingSave:
    """A save that `CheckpointManager.start_save` has begun; what came of it, the manager's `wait` tells.

    Args:
        step: optimizer steps done.
        stall_seconds: how long the training stood still for it.
        write: writes and commits it; called once, in a thread.
    """

    def __init__(self, step: int, stall_seconds: float, write: Callable[[], Committed]) -> None:
        self.step = step
        self.stall_seconds = stall_seconds
        self._write: Callable[[], Committed] | None = write
        self._done = threading.Event()
        self._committed: Committed | None = None
        self._error: BaseException | None = None
        self._clock: int | None = None
        # A daemon, so that no failure of a rank waits for others: what is not committed is not there.
        self._thread = threading.Thread(target=self._run, name="dist-train-save", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit of threads or of memory
            logger.warning("step %d is saved before the training goes on: %s", step, error)
            self._run()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not; asks nothing but this process."""
        return self._done.is_set()

    def _run(self) -> None:
        try:
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            assert self._write is not None
            self._committed = self._write()
        except BaseException as error:
            self._error = error
        finally:
            self._write = None  # and what it refers to
            self._done.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has ended; False if it has not after `timeout_s` seconds, or this is a forked child.

        While its thread uses processor time, the wait counts as progress for the watchdog.
        """
        # In a forked child the thread is none that lives; a lock that it held is never released there.
        if not self.is_done and not self._thread.is_alive():
            return False
        end = None if timeout_s is None else time.monotonic() + timeout_s
        used = 0.0
        while not self._done.wait(_ASK_EVERY_S):
            now = self._processor_time()
            if now > used:
                used = now
                keep_alive()
            if end is not None and time.monotonic() >= end:
                return self.is_done
        return True

    def _processor_time(self) -> float:
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:  # the thread has just ended
            return 0.0

    def result(self) -> Committed:
        """Return what was committed, of a save that has ended; raise what it failed by."""
        if self._error is not None:
            raise self._error
        assert self._committed is not None
        return self._committed
