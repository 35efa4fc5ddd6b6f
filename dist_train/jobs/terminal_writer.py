"""Write to the terminal from a thread of its own: whoever supervises processes never waits for its reader.

A reader that has stopped (Ctrl-S, `less`, a pipe that nobody reads) lets the queue grow to its limit; what
comes then is dropped, and counted.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

QUEUE_BYTES = 16 << 20
# A reader that has taken nothing for this long has stopped; before that it is only slow.
_STOPPED_S = 0.25
_READER_HAS_GONE = (errno.EPIPE, errno.EIO)  # of a pipe, of a terminal
_LOGS_HAVE_IT = "the log files have every line (dist-train logs)"
_WRITE_BYTES = 4096  # PIPE_BUF: what several processes write at once is not mixed


class TerminalWriter:
    """A bounded queue, and the thread that writes it; the thread begins with the first output.

    Args:
        on_dropped: called with the number of lines that were dropped, once the reader takes output again.
        say: prints a line on stderr; called once with why output cannot be written, but not of a gone reader.
    """

    def __init__(self, on_dropped: Callable[[int], None], say: Callable[[str], None] | None = None) -> None:
        self._on_dropped = on_dropped
        self._say = say
        self._queue: deque[tuple[int, bytes]] = deque()
        self._writing = b""
        self._queued = 0  # bytes, with those that are being written
        self._dropped = 0  # lines
        self._taken_at = 0.0
        # Its lock is reentrant: a signal handler may print while the main thread does.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_behind(self) -> bool:
        """Whether the reader is slow, but takes output: better to wait a little than to drop."""
        with self._changed:
            return self._queued > QUEUE_BYTES // 2 and time.monotonic() - self._taken_at < _STOPPED_S

    def put(self, stream: TextIO, data: bytes, always: bool = False) -> None:
        """Queue bytes; never waits for a terminal, a pipe or a file.

        Args:
            always: however full the queue is.
        """
        try:
            descriptor = stream.fileno()
        except (OSError, ValueError, AttributeError):
            _write_in_memory(stream, data)
            return
        with self._changed:
            # Once something was dropped, all is until there is room again: one gap, and not many.
            most = QUEUE_BYTES // 2 if self._dropped else QUEUE_BYTES - len(data)
            if not always and self._queued > most:
                self._dropped += _lines(data)
                return
            if self._queued <= most:
                self._say_dropped()
            if not self._queue:
                self._taken_at = max(self._taken_at, time.monotonic())
            self._queue.append((descriptor, data))
            self._queued += len(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="terminal-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, stopped_s: float) -> int:
        """Wait until all is written, unless the reader takes nothing for this long.

        Returns:
            How many lines were not written.
        """
        with self._changed:
            began = time.monotonic()
            while self._queued and time.monotonic() - max(began, self._taken_at) < stopped_s:
                self._changed.wait(0.05)
            left = [self._writing, *(data for _, data in self._queue)]
            return self._dropped + sum(_lines(data) for data in left if data)

    def _loop(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._changed.wait()
                descriptor, data = self._next()
                self._writing = data
            try:
                _write(descriptor, data)
            except OSError as error:
                self._say_failed(error)
            with self._changed:
                self._writing = b""
                self._queued -= len(data)
                self._taken_at = time.monotonic()
                if not self._queue:
                    self._say_dropped()
                self._changed.notify_all()

    def _next(self) -> tuple[int, bytes]:
        descriptor, data = self._queue.popleft()
        parts, size = [data], len(data)
        while (
            self._queue and self._queue[0][0] == descriptor and size + len(self._queue[0][1]) <= _WRITE_BYTES
        ):
            parts.append(self._queue.popleft()[1])
            size += len(parts[-1])
        return descriptor, b"".join(parts)

    def _say_dropped(self) -> None:
        """Tell of dropped lines, in their place: before what is queued next."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._on_dropped(dropped)

    def _say_failed(self, error: OSError) -> None:
        """Tell of the first write that failed, before it counts as written: close() waits for the line."""
        say, self._say = self._say, None
        if say is not None and error.errno not in _READER_HAS_GONE:
            say(f"the ranks' output cannot be written here: {error.strerror}; {_LOGS_HAVE_IT}")


def same_file(one: TextIO, other: TextIO) -> bool:
    """Whether two streams write to the same terminal, pipe or file."""
    try:
        return os.path.samestat(os.fstat(one.fileno()), os.fstat(other.fileno()))
    except (OSError, ValueError, AttributeError):
        return False


def _lines(data: bytes) -> int:
    return data.count(b"\n") or 1


def _write(descriptor: int, data: bytes) -> None:
    """Write all of it; raises OSError."""
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:
            select.select([], [descriptor], [], 1.0)


def _write_in_memory(stream: TextIO | None, data: bytes) -> None:
    """Write to a stream that is no file: it cannot stand still."""
    if stream is None:  # closed before this process began
        return
    try:
        stream.write(data.decode(errors="replace"))
    except (OSError, ValueError):
        pass  # it was closed meanwhile; the log files have every line
