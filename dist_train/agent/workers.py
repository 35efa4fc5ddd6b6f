"""One node's ranks as processes: started, watched by pidfd, read, ended.

One thread reads every rank's output and sees every death in the order of the kernel; the agent's
main thread starts and ends them (PR_SET_PDEATHSIG belongs to the thread that forks).
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from dist_train.agent import bounds
from dist_train.agent.console import Console, RankLog

logger = logging.getLogger(__name__)
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_TAIL_LINES = 15
# Ranks that have not been reaped: whoever reaps others' children (reaper.py) leaves these alone.
UNREAPED: set[int] = set()


@dataclass
class Rank:
    """One running rank."""

    rank: int
    local_rank: int
    process: subprocess.Popen[bytes]
    error_file: Path
    log: RankLog
    started_at: float = field(default_factory=time.monotonic)
    returncode: int | None = None  # as subprocess has it: negative for a signal
    ended_by_us: bool = False  # killed because the attempt had failed already
    interrupted: bool = False  # it does not read the stop flag: told to stop by SIGINT
    overdue: str | None = None  # killed because it broke a bound, and which
    stderr_tail: deque[str] = field(default_factory=lambda: deque(maxlen=_TAIL_LINES))

    def send(self, number: int) -> None:
        """Signal the rank itself, not its children; nothing when it has just ended."""
        if self.returncode is None:
            _quietly(lambda: os.kill(self.process.pid, number))

    def end_group(self) -> None:
        """SIGKILL the rank's process group: itself and its loader workers.

        Only before it is reaped: until then its number cannot belong to anybody else.
        """
        _quietly(lambda: os.killpg(self.process.pid, signal.SIGKILL))

    def error_record(self) -> dict[str, object] | None:
        """What boot.py wrote of the rank's exception, if it lived to write it."""
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
    """Start one rank; the only place that knows how. Call it from the main thread."""
    argv = [sys.executable, "-u", "-P", "-m", "dist_train.agent.boot", str(os.getpid()), *target]
    process = subprocess.Popen(
        argv,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # so that killpg reaches loader workers too, and Ctrl-C reaches nobody
        bufsize=0,
    )
    UNREAPED.add(process.pid)
    return Rank(rank, local_rank, process, error_file, log)


class Workers:
    """The ranks of one attempt on this node."""

    def __init__(self, ranks: Sequence[Rank], console: Console, on_exit: Callable[[Rank], None]) -> None:
        self.ranks = list(ranks)
        self._console = console
        self._on_exit = on_exit
        self._selector = selectors.DefaultSelector()
        self._open: set[int] = set()
        self._partial: dict[int, bytes] = {}
        for rank in self.ranks:
            self._watch(rank)
        self._thread = threading.Thread(target=self._loop, name="agent-workers", daemon=True)
        self._thread.start()

    @property
    def all_ended(self) -> bool:
        """Whether every rank has ended."""
        return all(rank.returncode is not None for rank in self.ranks)

    def kill(self, dump_stacks: bool) -> None:
        """End every rank and what it started: stacks to their logs first, then SIGKILL, then reap."""
        alive = [rank for rank in self.ranks if rank.returncode is None]
        for rank in alive:
            rank.ended_by_us = True
        if dump_stacks and alive:
            for rank in alive:
                rank.send(signal.SIGUSR1)
            self._wait_ended(bounds.STACK_DUMP_S / 4)
        for rank in self.ranks:
            if rank.returncode is None:
                rank.end_group()
        if not self._wait_ended(bounds.PROCESS_DEATH_S):
            left = [str(rank.process.pid) for rank in self.ranks if rank.returncode is None]
            self._console.note(
                f"could not be killed and are left: pid {', '.join(left)} (see `ps -o stat,wchan`)"
            )
        self._thread.join(timeout=2.0)

    def _wait_ended(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not self.all_ended and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.all_ended

    def _watch(self, rank: Rank) -> None:
        import fcntl

        for name, stream in (("out", rank.process.stdout), ("err", rank.process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            _quietly(lambda stream=stream: fcntl.fcntl(stream.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES))  # type: ignore[misc]
            self._register(stream.fileno(), (name, rank, stream))
        self._register(os.pidfd_open(rank.process.pid), ("pid", rank, None))

    def _register(self, descriptor: int, data: tuple[str, Rank, IO[bytes] | None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, data)
        self._open.add(descriptor)

    def _loop(self) -> None:
        drain_until: float | None = None
        while self._open:
            # Deaths before output: a culprit's pidfd must not wait behind its victims' tracebacks.
            ready = sorted(self._selector.select(timeout=0.2), key=lambda event: event[0].data[0] != "pid")
            for key, _ in ready:
                kind, rank, stream = key.data
                if kind == "pid":
                    self._reap(rank, key.fd)
                else:
                    self._read(kind, rank, key.fd, stream)
            self._console.tick()
            if self.all_ended:
                # A grandchild may hold a pipe open for ever: read what is there, then stop.
                drain_until = drain_until or time.monotonic() + 1.0
                if not ready or time.monotonic() > drain_until:
                    break
        for descriptor in list(self._open):
            self._forget(descriptor)
        self._selector.close()
        for rank in self.ranks:
            for stream in (rank.process.stdout, rank.process.stderr):
                if stream is not None:
                    stream.close()
            rank.log.close()
        self._console.flush()

    def _reap(self, rank: Rank, descriptor: int) -> None:
        # The last words first: what the rank wrote before it died is in the pipes already.
        for key in list(self._selector.get_map().values()):
            kind, owner, stream = key.data
            if owner is rank and kind != "pid":
                self._read(kind, rank, key.fd, stream)
        self._forget(descriptor)
        os.close(descriptor)
        rank.end_group()
        rank.returncode = rank.process.wait()
        UNREAPED.discard(rank.process.pid)
        self._on_exit(rank)

    def _read(self, kind: str, rank: Rank, descriptor: int, stream: IO[bytes]) -> None:
        while descriptor in self._open:
            try:
                chunk = os.read(descriptor, 65536)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                rest = self._partial.pop(descriptor, b"")
                if rest:
                    self._line(kind, rank, rest)
                self._forget(descriptor)
                return
            *lines, rest = (self._partial.pop(descriptor, b"") + chunk).split(b"\n")
            if rest:
                self._partial[descriptor] = rest
            for line in lines:
                self._line(kind, rank, line)

    def _line(self, kind: str, rank: Rank, line: bytes) -> None:
        rank.log.write(line)
        text = line.decode(errors="replace")
        if kind == "err":
            rank.stderr_tail.append(text)
        if not rank.ended_by_us:  # the stacks of victims are for their logs, not for the terminal
            self._console.line(rank.rank, kind == "err", text)

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._selector.unregister(descriptor)
            self._open.discard(descriptor)


def _quietly(call: Callable[[], object]) -> None:
    """For signals and limits that may come too late: the process has gone."""
    try:
        call()
    except OSError:
        pass
