"""End a rank that makes no progress, after printing the stacks of all its threads."""

from __future__ import annotations

import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

logger = logging.getLogger(__name__)

# With a frame of these packages at the top, the main thread waits for other ranks.
_WAITING_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/cuda/")
# A waiting rank is most likely a secondary failure: the collective's own timeout ends it with a better text.
_WAITING_FACTOR = 1.5
# A forward pass of DistributedDataParallel that other ranks do not make.
_EXCHANGE_OF_BUFFERS = (
    ", in DDP's exchange of buffers (BatchNorm's), which another rank has not begun (evaluate over "
    "dt.loader(…, evaluation=True), or dt.unwrap(model))"
)
# Asking the device may itself block, behind what the main thread waits for.
_ASK_DEVICE_S = 5.0


class HangWatchdog:
    """Ends the process by SIGABRT when mark() has not been called for `timeout_s` seconds.

    By a signal and not an exit code, so that it counts as a crash, which is restarted. The rank that hangs
    ends before those that wait for it in a collective: only it is the root cause.

    Args:
        timeout_s: longest time between two marks.
        rank: for the message.
        device_is_busy: whether work is pending on this rank's device. A rank that waits for others in
            `.item()` or `.cpu()` has no frame of torch at the top: its device is in the collective.
    """

    def __init__(
        self, timeout_s: float, rank: int = 0, device_is_busy: Callable[[], bool] | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._rank = rank
        self._device_is_busy = device_is_busy
        self._main = threading.main_thread().ident
        self._done = threading.Event()
        self._marked = time.monotonic()
        self._what = "the start"
        self._watching = False
        self._thread = threading.Thread(target=self._watch, name="dist-train-watchdog", daemon=True)

    def mark(self, what: str) -> None:
        """Record progress; the first call starts the watch. Costs about a microsecond.

        Args:
            what: where the run is now, for the message ("step 17", "evaluation").
        """
        self._marked = time.monotonic()
        self._what = what
        if not self._watching:
            self._watching = True
            self._thread.start()

    def keep_alive(self) -> None:
        """Postpone the end where the watch has begun: what mark() named last goes on."""
        self._marked = time.monotonic()

    def close(self) -> None:
        """Stop watching."""
        self._done.set()

    def _watch(self) -> None:
        while not self._done.wait(self._until_next_check()):
            idle = time.monotonic() - self._marked
            limit = self._timeout_s * (_WAITING_FACTOR if self._is_waiting() else 1.0)
            if idle >= limit:
                self._end(idle)

    def _until_next_check(self) -> float:
        left = self._marked + self._timeout_s - time.monotonic()
        return left if left > 0 else min(1.0, self._timeout_s / 10)

    def _is_waiting(self) -> bool:
        frame = sys._current_frames().get(self._main or 0)
        if frame is not None and _waits_for_others(frame):
            return True
        return self._device_is_busy is not None and _ask(self._device_is_busy)

    def _exchanges_buffers(self) -> bool:
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None and frame.f_code.co_name != "_sync_buffers":
            frame = frame.f_back
        return frame is not None

    def _end(self, idle: float) -> None:
        where = _EXCHANGE_OF_BUFFERS if self._exchanges_buffers() else ""
        message = (
            f"rank {self._rank} has made no progress for {idle:.0f} s, since {self._what}{where}: ending it"
        )
        print(f"dist-train: {message}; stacks follow", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        # No core file: it would be as large as the model.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        os.kill(os.getpid(), signal.SIGABRT)


def _ask(device_is_busy: Callable[[], bool]) -> bool:
    """Ask in a thread: no answer in time means that the device's driver waits too."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(device_is_busy())
        except Exception as error:  # a broken device waits for nobody
            logger.info("the device cannot be asked: %s", error)
            answers.append(False)

    thread = threading.Thread(target=ask, name="dist-train-watchdog-device", daemon=True)
    thread.start()
    thread.join(_ASK_DEVICE_S)
    return answers[0] if answers else True


def _waits_for_others(frame: FrameType) -> bool:
    path = frame.f_code.co_filename.replace("\\", "/")
    return any(part in path for part in _WAITING_IN)
