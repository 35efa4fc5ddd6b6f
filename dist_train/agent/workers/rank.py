"""One rank as a process: how it is started, signalled and ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dist_train.agent.descriptor_limit import restore_descriptor_limit
from dist_train.agent.failures.abort_reason import tells_of_abort
from dist_train.agent.warm_parent.rank_child import RankProcess
from dist_train.agent.workers.rank_log import RankLog

_TAIL_LINES = 15
WORKER_MAIN = "dist_train.agent.workers.worker_main"
# Pids of ranks that have not been reaped. Of the whole process, as children are: a reaper of orphans (in
# process 1 of a container) must leave these alone, from the fork on.
UNREAPED: set[int] = set()


@dataclass
class Rank:
    """One running rank."""

    rank: int
    local_rank: int
    process: RankProcess
    error_file: Path
    log: RankLog
    started_at: float = field(default_factory=time.monotonic)
    returncode: int | None = None  # as subprocess has it: negative for a signal
    ended_by_us: bool = False  # killed because the attempt had failed already
    interrupted: bool = False  # it does not read the stop flag: asked to stop by SIGTERM
    scheduler_sigterm: bool = False  # the scheduler had sent SIGTERM to it and to what it had started
    limit_exceeded: str | None = None  # killed because it exceeded this limit
    cut_short: str | None = None  # killed after the end of its script: what did not end
    stderr_tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))
    abort_line: str = ""  # why C++ or glibc ends the process, as the last such line of its stderr has it

    def note_error_line(self, line: str) -> None:
        """Keep what a line of its stderr may tell of its end."""
        self.stderr_tail.append(line)
        if tells_of_abort(line):
            self.abort_line = line

    def send(self, number: int) -> None:
        """Signal the rank itself, not its children; do nothing when it has just ended."""
        if self.returncode is None:
            with suppress(OSError):
                os.kill(self.process.pid, number)

    @property
    def ended_well(self) -> bool:
        """Whether its script has come to its own end, with exit code 0."""
        stopped = self.ended_by_us or self.interrupted or self.limit_exceeded or self.cut_short
        return self.returncode == 0 and not stopped

    def error_record(self) -> dict[str, object] | None:
        """Read the rank's exception as worker_main wrote it, if it did."""
        try:
            record = json.loads(self.error_file.read_text())
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None


def start_rank(
    rank: int,
    local_rank: int,
    target: Sequence[str],
    environ: Mapping[str, str],
    error_file: Path,
    log: RankLog,
) -> Rank:
    """Spawn one rank; call it from the main thread (PR_SET_PDEATHSIG)."""
    return Rank(rank, local_rank, spawn_process(target, environ), error_file, log)


def spawn_process(target: Sequence[str], environ: Mapping[str, str]) -> RankProcess:
    """Start the process of one rank as a new interpreter; call it from the main thread."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-P", "-m", WORKER_MAIN, str(os.getpid()), *target],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # killpg reaches loader workers too, and Ctrl-C does not reach the rank
        bufsize=0,
    )
    UNREAPED.add(process.pid)
    restore_descriptor_limit(process.pid)  # long before its interpreter has come to the user's code
    return process
