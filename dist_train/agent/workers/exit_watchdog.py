"""End ranks that hang on their way out; leave those alone that work, or that wait for something.

A rank may work alone after its peers have finished (a last evaluation, an upload, a child process),
for as long as its script wants. Bounded is what is not the script's any more:

- the interpreter's own end, after threads and exit functions: the script's exit code is kept;
- threads and exit functions of which nothing moves for long;
- an interpreter that is blocked: one thread holds its lock and does nothing. torch has such a hang (see
  process_group_lifetime, which prevents it where torch is as expected).
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from dist_train.agent import timeouts
from dist_train.agent.workers.processes import Workers
from dist_train.agent.workers.rank import Rank
from dist_train.errors import ExitCode
from dist_train.rundir.stop_file import ExitMark

logger = logging.getLogger(__name__)
# Threads that only poll use a little time; a process at work uses far more, or moves bytes.
_IDLE_CPU_SHARE = 1 / 30
_IDLE_BYTES = 1 << 20


@dataclass(frozen=True)
class ExitBounds:
    """Bounds in seconds; tests make them short."""

    blocked_s: float = timeouts.BLOCKED_RANK_S
    interpreter_end_s: float = timeouts.INTERPRETER_END_S
    failed_interpreter_end_s: float = timeouts.FAILED_INTERPRETER_END_S
    idle_exit_s: float = timeouts.IDLE_EXIT_S


@dataclass(frozen=True)
class Activity:
    """What a process and those that it started have used so far."""

    cpu_s: float = 0.0
    bytes_moved: int = 0

    def is_idle_since(self, before: Activity, seconds: float) -> bool:
        """Whether next to nothing was done in these seconds."""
        cpu_s = self.cpu_s - before.cpu_s
        moved = self.bytes_moved - before.bytes_moved
        return cpu_s < seconds * _IDLE_CPU_SHARE and moved < _IDLE_BYTES


@dataclass
class _Stage:
    """What a rank is at, since when, and its activity when half of the bound was over."""

    name: tuple[object, ...]
    since: float
    activity: Activity | None = None
    measured_at: float = 0.0


class ExitWatchdog:
    """Watches the ranks of one attempt on one node.

    Args:
        exit_mark: reads how far a rank is on its way out.
        bounds: how long each stage may take.
    """

    def __init__(self, exit_mark: Callable[[Rank], ExitMark], bounds: ExitBounds | None = None) -> None:
        self._exit_mark = exit_mark
        self._bounds = bounds or ExitBounds()
        self._stages: dict[int, _Stage] = {}
        self._killed: set[int] = set()

    def check(self, workers: Workers) -> None:
        """Kill the ranks that have exceeded the bound of their stage."""
        peer_has_finished = any(rank.returncode == 0 for rank in workers.ranks)
        for rank in workers.ranks:
            if (
                rank.returncode is None
                and rank.rank not in self._killed
                and self._is_over(rank, self._exit_mark(rank), peer_has_finished)
            ):
                self._killed.add(rank.rank)
                rank.send(signal.SIGKILL)

    def _is_over(self, rank: Rank, mark: ExitMark, peer_has_finished: bool) -> bool:
        bounds = self._bounds
        if mark.finalizing:
            failed = mark.exit_code not in (0, ExitCode.PREEMPTED)
            bound = bounds.failed_interpreter_end_s if failed else bounds.interpreter_end_s
            over = self._lasts(rank, ("finalizing",), bound)
            if over:
                logger.warning("rank %d: the interpreter's own end took %g s: killed", rank.rank, bound)
            return over
        if mark.exit_code is not None:
            over = self._lasts_idle(rank, ("script ended",), bounds.idle_exit_s)
            if over:
                rank.cut_short = (
                    f"its script had ended with {mark.exit_code}, but its threads or exit functions "
                    f"did not end, and did nothing for {bounds.idle_exit_s:g} s"
                )
            return over
        over = peer_has_finished and self._lasts_idle(rank, ("blocked", mark.heartbeats), bounds.blocked_s)
        if over:
            rank.limit_exceeded = (
                f"its Python was blocked for {bounds.blocked_s:g} s after another rank had finished "
                "(a DDP model that is freed after destroy_process_group() can do that: free it before)"
            )
        return over

    def _lasts(self, rank: Rank, name: tuple[object, ...], bound_s: float) -> bool:
        """Whether the rank has been in this stage for `bound_s`."""
        stage = self._stage(rank, name)
        return time.monotonic() - stage.since >= bound_s

    def _lasts_idle(self, rank: Rank, name: tuple[object, ...], bound_s: float) -> bool:
        """Whether it has also done nothing in the second half of it; else the time begins again."""
        stage, now = self._stage(rank, name), time.monotonic()
        if stage.activity is None:
            if now - stage.since >= bound_s / 2:
                stage.activity, stage.measured_at = activity_of(rank.process.pid), now
            return False
        if now - stage.since < bound_s:
            return False
        if activity_of(rank.process.pid).is_idle_since(stage.activity, now - stage.measured_at):
            return True
        del self._stages[rank.rank]
        return False

    def _stage(self, rank: Rank, name: tuple[object, ...]) -> _Stage:
        stage = self._stages.get(rank.rank)
        if stage is None or stage.name != name:
            stage = self._stages[rank.rank] = _Stage(name, time.monotonic())
        return stage


def activity_of(pid: int) -> Activity:
    """Add up a process and its descendants; zeros when it is gone."""
    import psutil  # only here: no start of an agent waits for it

    cpu_s, moved = 0.0, 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with process.oneshot():
                times = process.cpu_times()
                cpu_s += times.user + times.system
                io = process.io_counters()
                moved += io.read_chars + io.write_chars
    except (psutil.Error, OSError):
        pass
    return Activity(cpu_s, moved)
