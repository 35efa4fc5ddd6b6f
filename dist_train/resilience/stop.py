"""Stopping together: a flag that is set on one rank, a vote that makes it everybody's."""

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

from dist_train.distributed.control import Control
from dist_train.rundir.board import NO_STEP, Board, Slot

logger = logging.getLogger(__name__)

_TARGET_S = 0.5
# Steps can slow down at once (the first ones draw prefetched batches, a file system stalls): a stop must
# still be heard within the grace. A vote takes some 0.1 ms on a host, so 16 steps of 1 ms bear it.
_MAX_EVERY = 16
_FLAG_SHIFT = 32


class StopFlag:
    """Whether somebody wants this run to save and stop; local, never acted on alone.

    Under our agent it is the first byte of the node's board, which the agent sets (0: go on,
    1: save and stop); a board that is not there yet counts as 0. Without an agent, TERM and USR2
    set it, from the moment when somebody first asks: a script that never asks still dies of TERM.

    Args:
        path: the agent's board, or None to listen to signals.
        local_rank: this rank's slot there.
    """

    def __init__(self, path: Path | None = None, local_rank: int = 0) -> None:
        self._path = path
        self._local_rank = local_rank
        self._board: Board | None = None
        self._slot = Slot(0, NO_STEP, 0)
        self._value = 0
        self._before: dict[int, Any] = {}

    def read(self) -> int:
        """The flag's value now: 0, or the reason to stop."""
        board = self._open()
        return max(self._value, 0 if board is None else board.stop)

    def set(self, value: int = 1) -> None:
        """Set it from inside this process."""
        self._value = max(self._value, value)

    def mark(self, step: int | None = None) -> None:
        """Tell the agent how far this rank is: `step` optimizer steps, or just that it goes on."""
        self._write(Slot(self._slot.pid, self._slot.step if step is None else step, self._slot.beats + 1))

    def _write(self, slot: Slot) -> None:
        self._slot = slot
        board = self._open()
        if board is not None:
            board.write(self._local_rank, slot)

    def _open(self) -> Board | None:
        if self._board is None and self._path is not None:
            try:
                self._board = Board.open(self._path)
            except FileNotFoundError:
                return None
        return self._board

    def listen(self) -> None:
        """Install the signal handlers, or tell the agent that its flag is read here.

        They replace what was installed and do not call it; close() puts it back. A second signal
        does what it did before: whoever insists gets the process's end.
        """
        if self._path is not None:
            # Who does not read the flag is interrupted when a stop is asked.
            self._write(Slot(os.getpid(), self._slot.step, self._slot.beats))
            return
        if self._before:
            return
        if threading.current_thread() is not threading.main_thread():
            logger.warning("stop signals are not heard: should_stop was first called outside the main thread")
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
        """Put back the handlers that were there before."""
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before.clear()


class StopVote:
    """The ranks' agreement to stop, at the same call on all of them.

    Every rank asks at every step; every k-th asking is a collective that takes the largest flag.
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
        self._asked = 0
        self._next = 0
        self._k = 1
        self._slowest_s = 0.0
        self._asked_at: float | None = None
        self.votes = 0
        self.value = 0

    def agreed(self, step: int | None = None) -> bool:
        """Collective: every rank must ask equally often. True for good once a stop is agreed.

        Args:
            step: only for the log.
        """
        if self.value:
            return True
        if self._asked == 0:
            self._flag.listen()
        asked, self._asked = self._asked, self._asked + 1
        now = self._clock()
        if self._asked_at is not None:
            self._slowest_s = max(self._slowest_s, now - self._asked_at)
        self._asked_at = now
        if asked < self._next:
            return False
        self._vote(asked)
        stop = self.value > 0
        if stop and self._control.is_main:
            logger.info("stop agreed by all ranks%s", f" at step {step}" if step is not None else "")
        return stop

    def _vote(self, asked: int) -> None:
        choice = self._choose() if self._control.is_main else 0
        self._slowest_s = 0.0
        # One number carries both: any flag outweighs every k, and then k no longer matters.
        result = self._control.max_int(self._flag.read() << _FLAG_SHIFT | choice)
        self.votes += 1
        self.value = result >> _FLAG_SHIFT
        self._k = max(1, result & ((1 << _FLAG_SHIFT) - 1))
        self._next = asked + self._k

    def _choose(self) -> int:
        if self._every is not None:
            return self._every
        if self._asked == 1:
            return 1  # no step was seen yet
        return max(1, min(_MAX_EVERY, 2 * self._k, int(_TARGET_S / max(self._slowest_s, 1e-6))))
