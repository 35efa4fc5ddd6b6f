"""One node's ranks as processes: start them, watch them by pidfd, read their output, end them.

One thread reads every rank's output and sees every exit in the order of the kernel; the agent's
main thread starts and ends them (PR_SET_PDEATHSIG belongs to the thread that forks).
"""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from dist_train.agent import timeouts
from dist_train.agent.workers.exit_descriptor import exit_descriptor
from dist_train.agent.workers.process_group import end_group
from dist_train.agent.workers.rank import UNREAPED, Rank
from dist_train.agent.workers.rank_output import RankOutput
from dist_train.agent.workers.stacks.stack_dump import may_be_dumping
from dist_train.errors import ExitCode
from dist_train.rundir.log_text.output_stream import OutputStream
from dist_train.rundir.stop_file import ExitMark

logger = logging.getLogger(__name__)
_PIPE_BYTES = 1 << 20
_CHUNK = 64 * 1024
_CHUNKS_AT_ONCE = 4
_LOOK_S = 0.02  # where nothing wakes the one who waits
_BEHIND_S = 0.005  # between looks at a terminal that is slower than the ranks
_CHUNKS_AT_THE_END = 4 * _PIPE_BYTES // _CHUNK  # more than a pipe holds


class Workers:
    """The ranks of one attempt on this node.

    Args:
        on_exit: called by the watching thread when a rank has been reaped.
        exit_mark: reads how far a rank is on its way out.
    """

    def __init__(
        self,
        ranks: Sequence[Rank],
        output: RankOutput,
        on_exit: Callable[[Rank], None],
        exit_mark: Callable[[Rank], ExitMark],
    ) -> None:
        self.ranks = list(ranks)
        self._output = output
        self._on_exit = on_exit
        self._exit_mark = exit_mark
        self._selector = selectors.DefaultSelector()
        self._open: set[int] = set()
        self._stderr_bytes: Counter[int] = Counter()
        self._changed = threading.Event()  # a rank has ended or has written to stderr
        self._streams: dict[tuple[int, str], OutputStream] = {}
        # Held while output is read or an end is seen: kill() reads the last words itself.
        self._reading = threading.RLock()
        for rank in self.ranks:
            self._watch(rank)
        self._thread = threading.Thread(target=self._loop, name="agent-workers", daemon=True)
        self._thread.start()

    @property
    def all_ended(self) -> bool:
        """Whether every rank has ended."""
        return all(rank.returncode is not None for rank in self.ranks)

    def let_exit(self, timeout_s: float) -> None:
        """Wait for ranks whose script has ended: a peer may tell of a broken connection before they do."""
        self._wait_until(
            lambda: all(
                rank.returncode is not None or self._exit_mark(rank).exit_code is None for rank in self.ranks
            ),
            timeout_s,
        )

    def kill(self, dump_stacks: bool) -> None:
        """Kill every rank and what it started: stacks into the logs first, then SIGKILL, then reap."""
        alive = [rank for rank in self.ranks if rank.returncode is None]
        with self._reading:
            for rank in alive:
                self._show_last_words(rank)
                rank.ended_by_us = True
        if dump_stacks and alive:
            before = {rank.rank: self._stderr_bytes[rank.rank] for rank in alive}
            for rank in alive:
                rank.send(signal.SIGUSR1)
            self._wait_until(
                lambda: all(self._has_dumped(rank, before[rank.rank]) for rank in alive),
                timeouts.STACK_DUMP_S / 4,
            )
        for rank in self.ranks:
            if rank.returncode is None:
                end_group(rank.process.pid)
        if not self._wait_ended(timeouts.PROCESS_DEATH_S):
            left = [str(rank.process.pid) for rank in self.ranks if rank.returncode is None]
            self._output.note(
                f"could not be killed and are left: pid {', '.join(left)} (see `ps -o stat,wchan`)"
            )
        self._thread.join(timeout=2.0)

    def _show_last_words(self, rank: Rank) -> None:
        """Pass on what is held of unfinished lines: stacks of secondary failures are not shown."""
        if rank.returncode is not None:
            return
        for key in list(self._selector.get_map().values()):
            kind, owner, _ = key.data
            if owner is rank and kind != "pid":
                self._read(kind, rank, key.fd, _CHUNKS_AT_ONCE)
                self._finish(kind, rank)

    def _has_dumped(self, rank: Rank, before: int) -> bool:
        """Whether the rank has printed its stacks, or has ended.

        Args:
            before: how many bytes of its stderr had been read when it was asked.
        """
        if rank.returncode is not None:
            return True
        return self._stderr_bytes[rank.rank] > before and not may_be_dumping(rank.process.pid)

    def _wait_ended(self, timeout_s: float) -> bool:
        return self._wait_until(lambda: self.all_ended, timeout_s)

    def _wait_until(self, is_so: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while not is_so() and time.monotonic() < deadline:
            self._changed.wait(_LOOK_S)
            self._changed.clear()
        return is_so()

    def _watch(self, rank: Rank) -> None:
        for name, stream in (("out", rank.process.stdout), ("err", rank.process.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            with suppress(OSError):  # above the limit of this user
                fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._register(stream.fileno(), (name, rank, stream))
        self._register(exit_descriptor(rank.process.pid), ("pid", rank, None))

    def _register(self, descriptor: int, data: tuple[str, Rank, IO[bytes] | None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, data)
        self._open.add(descriptor)

    def _loop(self) -> None:
        drain_until: float | None = None
        while self._open:
            # Exits before output: the root cause's pidfd must not wait behind other ranks' tracebacks.
            ready = sorted(self._selector.select(timeout=0.2), key=lambda event: event[0].data[0] != "pid")
            behind = self._output.is_behind
            with self._reading:
                for key, _ in ready:
                    kind, rank, _ = key.data
                    if kind == "pid":
                        self._reap(rank, key.fd)
                    elif not behind:
                        self._read(kind, rank, key.fd, _CHUNKS_AT_ONCE)
                self._tick()
            if behind:
                time.sleep(_BEHIND_S)
            if self.all_ended:
                # A grandchild may hold a pipe open for ever: read what is buffered, then stop.
                drain_until = drain_until or time.monotonic() + 1.0
                if not ready or time.monotonic() > drain_until:
                    break
        for descriptor in list(self._open):
            self._forget(descriptor)
        self._selector.close()
        for rank in self.ranks:
            for name, pipe in (("out", rank.process.stdout), ("err", rank.process.stderr)):
                if pipe is not None:
                    self._finish(name, rank)
                    pipe.close()
            rank.log.close()
        self._output.flush()

    def _reap(self, rank: Rank, descriptor: int) -> None:
        # The last output first: what the rank wrote before its end is in the pipes already.
        for key in list(self._selector.get_map().values()):
            kind, owner, _ = key.data
            if owner is rank and kind != "pid":
                self._read(kind, rank, key.fd, _CHUNKS_AT_THE_END)
                self._finish(kind, rank)
        self._forget(descriptor)
        os.close(descriptor)
        left = end_group(rank.process.pid)
        rank.returncode = self._code(rank, rank.process.wait())
        if left and rank.ended_well:
            self._output.note_left_running(f"rank {rank.rank}", left[0])
        UNREAPED.discard(rank.process.pid)
        self._changed.set()
        self._on_exit(rank)

    def _code(self, rank: Rank, status: int) -> int:
        """Return how the rank ended: a crash of the interpreter's own end does not undo the script's."""
        mark = self._exit_mark(rank)
        if status >= 0 or mark.exit_code is None:
            return status
        if rank.cut_short is not None:
            return mark.exit_code or int(ExitCode.EARLY_EXIT)
        if not mark.finalizing:
            return status
        if not rank.ended_by_us:
            self._output.note(
                f"rank {rank.rank}: its script had ended with {mark.exit_code}, which counts; "
                f"the interpreter's own end was cut off by signal {-status}"
            )
        return mark.exit_code

    def _read(self, kind: str, rank: Rank, descriptor: int, most: int) -> None:
        """Read what is in a pipe, bounded: a rank that prints for ever must not hide the others' ends."""
        for _ in range(most):
            if descriptor not in self._open:
                return
            try:
                chunk = os.read(descriptor, _CHUNK)
            except BlockingIOError:
                return
            except OSError:
                chunk = b""
            if not chunk:
                self._finish(kind, rank)
                self._forget(descriptor)
                return
            if kind == "err":
                self._stderr_bytes[rank.rank] += len(chunk)
                self._changed.set()
            stream = self._stream(kind, rank)
            self._take(kind, rank, stream, stream.feed(chunk, time.monotonic()))

    def _stream(self, kind: str, rank: Rank) -> OutputStream:
        return self._streams.setdefault((rank.rank, kind), OutputStream())

    def _finish(self, kind: str, rank: Rank) -> None:
        stream = self._stream(kind, rank)
        self._take(kind, rank, stream, stream.finish())

    def _tick(self) -> None:
        now = time.monotonic()
        for rank in self.ranks:
            for kind in ("out", "err"):
                stream = self._stream(kind, rank)
                if late := stream.late(now):
                    self._take(kind, rank, stream, late)
                    rank.log.flush()
                if self._shown_by_lines(kind, rank) and (state := stream.due(now)):
                    self._output.line(rank.rank, kind == "err", state.decode(errors="replace"))
            rank.log.tick(now)
        self._output.tick()

    def _take(self, kind: str, rank: Rank, stream: OutputStream, passed: bytes) -> None:
        """Log and show what the stream has passed, and its lines."""
        lines, stream.lines = stream.lines, []
        rank.log.write(passed)
        by_lines = self._shown_by_lines(kind, rank)
        for line in lines:
            text = line.decode(errors="replace")
            if kind == "err":
                rank.note_error_line(text)
            if by_lines:
                self._output.line(rank.rank, kind == "err", text)
        if passed and not rank.ended_by_us and self._output.passes_on(rank.rank, kind == "err"):
            self._output.pass_on(passed)

    def _shown_by_lines(self, kind: str, rank: Rank) -> bool:
        # Stacks of secondary failures are for the logs, not for the terminal.
        is_stderr, shown = kind == "err", not rank.ended_by_us
        return (
            shown
            and self._output.shows(rank.rank, is_stderr)
            and not self._output.passes_on(rank.rank, is_stderr)
        )

    def _forget(self, descriptor: int) -> None:
        if descriptor in self._open:
            self._selector.unregister(descriptor)
            self._open.discard(descriptor)
