"""A rank that idles on after its peers have finished is hung: nobody waits for ever.

torch has such a hang: a DDP object freed after destroy_process_group() joins gloo's threads while
it holds the GIL. A rank that still *works* (a last evaluation on rank 0) is left alone: what counts
is that it used no processor time.
"""

from __future__ import annotations

import os
import signal
import time

from dist_train.agent import bounds
from dist_train.agent.workers import Rank, Workers

# Threads that only poll use a little time; a rank at work uses far more in half a minute.
_IDLE_CPU_S = 1.0


class Outlived:
    """Watches the ranks of one attempt on one node."""

    def __init__(self, bound_s: float = bounds.OUTLIVED_S) -> None:
        self._bound_s = bound_s
        self._since: float | None = None
        self._cpu_s: dict[int, float] = {}

    def check(self, workers: Workers) -> None:
        """End ranks that have idled through the bound since the first of their siblings finished."""
        ended = [rank for rank in workers.ranks if rank.returncode == 0]
        alive = [rank for rank in workers.ranks if rank.returncode is None]
        now = time.monotonic()
        if not ended or not alive:
            self._since = None
            return
        if self._since is None or now - self._since >= self._bound_s:
            if self._since is not None:
                self._end_idle(alive)
            self._since = now
            self._cpu_s = {rank.rank: cpu_seconds(rank.process.pid) for rank in alive}

    def _end_idle(self, alive: list[Rank]) -> None:
        for rank in alive:
            if cpu_seconds(rank.process.pid) - self._cpu_s.get(rank.rank, 0.0) < _IDLE_CPU_S:
                rank.overdue = f"idle for {self._bound_s:g} s after another rank had finished"
                rank.send(signal.SIGKILL)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
