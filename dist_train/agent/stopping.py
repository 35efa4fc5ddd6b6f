"""Save and stop: signals become a flag, the ranks agree on a step, the grace bounds it all.

The agent blocks TERM and USR2 before any thread starts and one thread waits for them, so that a
signal sent to every process of a step harms nobody, and one that comes during start-up is kept.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from dist_train.agent.workers import Rank, Workers
from dist_train.rundir.board import NO_STEP, Board

SIGNALS = frozenset({signal.SIGTERM, signal.SIGUSR2})
# A script that does not read the flag is interrupted (SIGINT) after this long; one that has only
# just started may still be importing what reads it. Our own trainer always comes to read it.
_SUBSCRIBE_S = 1.0
_STARTING_S = 5.0


class Stopping:
    """One node's stop: asked by a signal here, or by node 0 for all nodes."""

    def __init__(self, grace_s: float, reads_the_flag: bool = False) -> None:
        self._grace_s = grace_s
        self._reads_the_flag = reads_the_flag
        self._lock = threading.Lock()
        self._board: Board | None = None
        self._workers: Workers | None = None
        self._asked_at: float | None = None

    @property
    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked_at is not None

    def ask(self) -> None:
        """Set the ranks' flag, now and for ranks that start later."""
        with self._lock:
            if self._asked_at is None:
                self._asked_at = time.monotonic()
            if self._board is not None:
                self._board.stop = 1

    def watch(self, board: Board, workers: Workers) -> None:
        """A new attempt's ranks."""
        with self._lock:
            self._board, self._workers = board, workers
            if self.asked:
                board.stop = 1

    def step_of(self, rank: Rank) -> int | None:
        """The optimizer steps that a rank has done, if it tells."""
        if self._board is None:
            return None
        step = self._board.read(rank.local_rank).step
        return None if step == NO_STEP else step

    def tick(self) -> None:
        """Interrupt ranks that do not read the flag; end those that break the grace."""
        if self._asked_at is None or self._workers is None or self._board is None:
            return
        waited = time.monotonic() - self._asked_at
        if waited >= _SUBSCRIBE_S and not self._reads_the_flag:
            self._interrupt_deaf(self._workers, self._board)
        if waited >= self._grace_s:
            for rank in self._workers.ranks:
                if rank.returncode is None and rank.overdue is None:
                    rank.overdue = f"did not stop within the grace of {self._grace_s:g} s"
                    rank.interrupted = False
                    rank.send(signal.SIGKILL)

    def _interrupt_deaf(self, workers: Workers, board: Board) -> None:
        for rank in workers.ranks:
            starting = time.monotonic() - rank.started_at < _STARTING_S
            deaf = board.read(rank.local_rank).pid == 0 and not rank.interrupted
            if deaf and not starting and rank.returncode is None and rank.overdue is None:
                rank.interrupted = True
                rank.send(signal.SIGINT)


def wait_for_signals(on_signal: Callable[[str], None]) -> None:
    """Start the thread that takes TERM and USR2; they must be blocked already in every thread."""

    def wait() -> None:
        while True:
            number = signal.sigwait(SIGNALS)
            on_signal("time limit" if number == signal.SIGUSR2 else "terminated")

    threading.Thread(target=wait, name="agent-signals", daemon=True).start()
