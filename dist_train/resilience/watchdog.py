"""A rank that makes no progress ends itself, with the stacks of all its threads."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
from types import FrameType

logger = logging.getLogger(__name__)

# Frames of these packages at the top of the main thread: it waits for other ranks.
_WAITING_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/cuda/")
# A waiting rank is most likely a victim: the collective's own time-out ends it, with better words.
_WAITING_FACTOR = 1.5


class HangWatchdog:
    """Ends the process by SIGABRT when mark() has not been called for `timeout_s` seconds.

    A signal and not an exit code, so that the death counts as one that a restart may mend. The rank
    that hangs ends before those that wait for it in a collective: only it is the cause.

    Args:
        timeout_s: longest time between two marks.
        rank: for the message.
    """

    def __init__(self, timeout_s: float, rank: int = 0) -> None:
        self._timeout_s = timeout_s
        self._rank = rank
        self._main = threading.main_thread().ident
        self._done = threading.Event()
        self._marked = time.monotonic()
        self._what = "the start"
        self._watching = False
        self._thread = threading.Thread(target=self._watch, name="dist-train-watchdog", daemon=True)

    def mark(self, what: str) -> None:
        """Progress was made; the first mark begins the watch. Costs about a microsecond.

        Args:
            what: where the run is now, for the message ("step 17", "evaluation").
        """
        self._marked = time.monotonic()
        self._what = what
        if not self._watching:
            self._watching = True
            self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(self._next_look()):
            idle = time.monotonic() - self._marked
            limit = self._timeout_s * (_WAITING_FACTOR if self._is_waiting() else 1.0)
            if idle >= limit:
                self._end(idle)

    def _next_look(self) -> float:
        left = self._marked + self._timeout_s - time.monotonic()
        return left if left > 0 else min(1.0, self._timeout_s / 10)

    def _is_waiting(self) -> bool:
        frame = sys._current_frames().get(self._main or 0)
        return frame is not None and _waits_for_others(frame)

    def _end(self, idle: float) -> None:
        message = f"rank {self._rank} has made no progress for {idle:.0f} s, since {self._what}: ending it"
        print(f"dist-train: {message}; stacks follow", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        # No core file: it would be as large as the model.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.kill(os.getpid(), signal.SIGABRT)


def _waits_for_others(frame: FrameType) -> bool:
    path = frame.f_code.co_filename.replace("\\", "/")
    return any(part in path for part in _WAITING_IN)
