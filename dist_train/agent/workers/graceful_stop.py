"""Save and stop: a signal sets the ranks' stop flag, the ranks agree on a step, the grace period bounds it.

The agent blocks TERM and USR2 before any thread starts and one thread waits for them, so that a
signal sent to every process of a job step ends none of them, and one that comes during start-up stays
pending.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import Rank
from dist_train.rundir.stop_file import NO_STEP, StopFile

SIGNALS = frozenset({signal.SIGTERM, signal.SIGUSR2})
# A script that does not read the flag gets SIGTERM after this long: its own handler, or what Ctrl-C does
# (dist_train/agent/workers/signals/rank_signals.py). One that has only just started may still be importing
# what reads it. Our own trainer always comes to read it.
_SUBSCRIBE_S = 1.0
_STARTING_S = 5.0
# A rank writes every second whether the script has a handler of its own.
_HANDLER_KNOWN_S = 2.0


class GracefulStop:
    """One node's stop, asked for by a signal here or by node 0 for all nodes.

    Args:
        grace_s: after this long ranks that still run are killed.
        reads_the_flag: the target is known to read the stop flag (our own trainer).
        step_signals: the scheduler signals ranks and their children too: a script's own handler of SIGTERM
            has been called by it, and must not be called twice.
    """

    def __init__(self, grace_s: float, reads_the_flag: bool = False, step_signals: bool = False) -> None:
        self.step_signals = step_signals
        self._grace_s = grace_s
        self._reads_the_flag = reads_the_flag
        self._lock = threading.Lock()
        self._stop_file: StopFile | None = None
        self._workers: Workers | None = None
        self._asked_at: float | None = None
        self._ranks_signalled_at: float | None = None

    @property
    def asked(self) -> bool:
        """Whether a stop was asked for."""
        return self._asked_at is not None

    def ask(self) -> None:
        """Set the ranks' flag, now and for ranks that start later."""
        with self._lock:
            if self._asked_at is None:
                self._asked_at = time.monotonic()
            if self._stop_file is not None:
                self._stop_file.stop = 1

    def sigterm_came(self) -> None:
        """Note that this agent got SIGTERM: where the scheduler signals every process, so did the ranks."""
        if self.step_signals and self._ranks_signalled_at is None:
            self._ranks_signalled_at = time.monotonic()

    def watch(self, stop_file: StopFile, workers: Workers) -> None:
        """Take over a new attempt's ranks."""
        with self._lock:
            self._stop_file, self._workers = stop_file, workers
            if self.asked:
                stop_file.stop = 1

    def step_of(self, rank: Rank) -> int | None:
        """Return the optimizer steps that a rank has done, if it writes them."""
        if self._stop_file is None:
            return None
        step = self._stop_file.read(rank.local_rank).step
        return None if step == NO_STEP else step

    def note_end(self, rank: Rank) -> None:
        """Note on a rank that has ended whether the scheduler's SIGTERM, or its handler of it, may be why."""
        rank.scheduler_sigterm = self._has_schedulers_sigterm(rank)
        if self._stop_file is not None and self._handles_stop_itself(rank, self._stop_file):
            rank.interrupted = True

    def _has_schedulers_sigterm(self, rank: Rank) -> bool:
        return self._ranks_signalled_at is not None and rank.started_at <= self._ranks_signalled_at

    def _handles_stop_itself(self, rank: Rank, stop_file: StopFile) -> bool:
        """Whether the scheduler's SIGTERM has called the handler of a script that does not read the flag."""
        if not self._has_schedulers_sigterm(rank) or self._reads_the_flag or rank.limit_exceeded is not None:
            return False
        mark = stop_file.read_sigterm(rank.local_rank)
        subscribed = stop_file.read(rank.local_rank).pid != 0
        return mark.handled_by_script and not mark.passed_over and not subscribed

    def tick(self) -> None:
        """Interrupt ranks that do not read the flag; kill those that exceed the grace period."""
        if self._asked_at is None or self._workers is None or self._stop_file is None:
            return
        waited = time.monotonic() - self._asked_at
        subscribe_s = _SUBSCRIBE_S if self._ranks_signalled_at is None else _HANDLER_KNOWN_S
        if waited >= subscribe_s and not self._reads_the_flag:
            self._interrupt_unsubscribed(self._workers, self._stop_file)
        if waited >= self._grace_s:
            for rank in self._workers.ranks:
                if self._stop_file.read_exit(rank.local_rank).finalizing:
                    continue  # its script has ended, and its files are written: exit_watchdog bounds the rest
                if rank.returncode is None and rank.limit_exceeded is None:
                    rank.limit_exceeded = f"did not stop within the grace of {self._grace_s:g} s"
                    rank.interrupted = False
                    rank.send(signal.SIGKILL)

    def _interrupt_unsubscribed(self, workers: Workers, stop_file: StopFile) -> None:
        for rank in workers.ranks:
            starting = time.monotonic() - rank.started_at < _STARTING_S
            subscribed = stop_file.read(rank.local_rank).pid != 0
            if subscribed or rank.interrupted:
                continue
            if not starting and rank.returncode is None and rank.limit_exceeded is None:
                called = self._handles_stop_itself(rank, stop_file)
                rank.interrupted = True
                if not called:
                    stop_file.interrupts = True
                    rank.send(signal.SIGTERM)


def wait_for_signals(on_signal: Callable[[str], None], on_sigterm: Callable[[], None]) -> None:
    """Start the thread that receives TERM and USR2; they must be blocked already in every thread.

    Args:
        on_signal: called with the reason of the stop.
        on_sigterm: called before it where it is SIGTERM.
    """

    def wait() -> None:
        while True:
            number = signal.sigwait(SIGNALS)
            if number == signal.SIGTERM:
                on_sigterm()
            on_signal("time limit" if number == signal.SIGUSR2 else "terminated")

    threading.Thread(target=wait, name="agent-signals", daemon=True).start()
