"""Stop all ranks at the same step: a local stop flag, and a vote by which the ranks agree on it."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from dist_train.distributed.control_group import Control
from dist_train.rundir.stop_file import NO_STEP, Slot, StopFile
from dist_train.rundir.times.span_clock import STOPPING, span_clock

logger = logging.getLogger(__name__)

_TARGET_S = 0.5
# Steps can slow down suddenly (the first ones read prefetched batches, a file system stalls): a stop must
# still be seen within the grace period. A vote takes some 0.1 ms on a host: little even for 16 steps of 1 ms.
_MAX_EVERY = 16
_FLAG_SHIFT = 32


class StopFlag:
    """Whether this run was asked to save and stop; local to the rank, which never acts on it alone.

    Under our agent it is the first byte of the node's stop file, which the agent sets (0: go on, 1: save
    and stop); a missing file counts as 0. Without an agent, TERM and USR2 set it, from the first vote on:
    a script that never votes is still ended by TERM.

    Args:
        path: the agent's stop file, or None to handle signals.
        local_rank: this rank's slot there.
    """

    def __init__(self, path: Path | None = None, local_rank: int = 0) -> None:
        self._path = path
        self._local_rank = local_rank
        self._stop_file: StopFile | None = None
        self._slot = Slot(0, NO_STEP, 0)
        self._value = 0
        self._before: dict[int, Any] = {}

    def read(self) -> int:
        """Return the flag's value: 0, or the reason to stop."""
        stop_file = self._open()
        return max(self._value, 0 if stop_file is None else stop_file.stop)

    def set(self, value: int = 1) -> None:
        """Set the flag from inside this process."""
        self._value = max(self._value, value)

    def mark(self, step: int | None = None) -> None:
        """Write this rank's progress into the stop file: `step` optimizer steps, or only that it goes on."""
        self._write(
            Slot(self._slot.pid, self._slot.step if step is None else step, self._slot.progress_count + 1)
        )

    def _write(self, slot: Slot) -> None:
        self._slot = slot
        stop_file = self._open()
        if stop_file is not None:
            stop_file.write(self._local_rank, slot)

    def _open(self) -> StopFile | None:
        if self._stop_file is None and self._path is not None:
            try:
                self._stop_file = StopFile.open(self._path)
            except FileNotFoundError:
                return None
        return self._stop_file

    def listen(self) -> None:
        """Install the signal handlers, or write into the stop file that the flag is read here.

        The handlers replace the installed ones without calling them; close() restores those. A second signal
        is passed on to the one before, which by default ends the process.
        """
        if self._path is not None:
            # The agent interrupts (SIGTERM) ranks that do not read the flag when it asks for a stop.
            self._write(Slot(os.getpid(), self._slot.step, self._slot.progress_count))
            return
        if self._before:
            return
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "stop signals are not handled: should_stop was first called outside the main thread"
            )
            return
        for number in (signal.SIGTERM, signal.SIGUSR2):
            self._before[number] = signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._value:
            signal.signal(number, self._before.get(number) or signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.set()

    def close(self) -> None:
        """Restore the signal handlers of before."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()


class StopVote:
    """Agreement of the ranks to stop, at the same call on all of them.

    Every rank calls `agreed` at every step; every k-th call is a collective that takes the largest flag.
    The same collective carries rank 0's choice of the next k, so k is equal on all ranks at any time:
    half a second of steps by the slowest since the last vote, at most 16, and at most twice the last k.

    Args:
        control: the ranks' control group.
        flag: this rank's own flag.
        every: a fixed k; None to choose it by time.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        control: Control,
        flag: StopFlag,
        every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every is not None and every < 1:
            raise ValueError(f"every must be at least 1, not {every}")
        self._control = control
        self._flag = flag
        self._every = every
        self._clock = clock
        self._calls = 0
        self._next = 0
        self._k = 1
        self._slowest_s = 0.0
        self._called_at: float | None = None
        self.votes = 0
        self.value = 0

    def agreed(self, step: int | None = None) -> bool:
        """Collective: every rank must call it equally often. True for good once a stop is agreed.

        Args:
            step: only for the log.
        """
        if self.value:
            return True
        if self._calls == 0:
            self._flag.listen()
        call, self._calls = self._calls, self._calls + 1
        now = self._clock()
        if self._called_at is not None:
            self._slowest_s = max(self._slowest_s, now - self._called_at)
        self._called_at = now
        if call < self._next:
            return False
        self._vote(call)
        stop = self.value > 0
        if stop:
            span_clock().switch(STOPPING)
        if stop and self._control.is_main:
            logger.info("stop agreed by all ranks%s", f" at step {step}" if step is not None else "")
        return stop

    def _vote(self, call: int) -> None:
        choice = self._choose() if self._control.is_main else 0
        self._slowest_s = 0.0
        # One number carries both: any flag is larger than every k, and then k no longer matters.
        result = self._control.max_int(self._flag.read() << _FLAG_SHIFT | choice)
        self.votes += 1
        self.value = result >> _FLAG_SHIFT
        self._k = max(1, result & ((1 << _FLAG_SHIFT) - 1))
        self._next = call + self._k

    def _choose(self) -> int:
        if self._every is not None:
            return self._every
        if self._calls == 1:
            return 1  # no step was timed yet
        return max(1, min(_MAX_EVERY, 2 * self._k, int(_TARGET_S / max(self._slowest_s, 1e-6))))
