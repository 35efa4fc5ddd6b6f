"""A log file that is written by parts, within a limit, and never at the cost of the run's own records."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from dist_train.rundir.format_amounts import size
from dist_train.rundir.log_text.log_parts import DEFAULT_LIMIT_BYTES, newest_part, part_path

_FLUSH_BYTES = 64 * 1024
# With the wait of the thread that reads the ranks this makes a second.
_FLUSH_S = 0.7
_PARTS = 8
_UNWRITTEN_BYTES = 1 << 20  # what is kept for a disk that may soon have room again
# Left free for what must be written: events, verdict, checkpoints.
_RESERVE_BYTES = 64 << 20
_RESERVE_SHARE = 0.05


class BoundedLog:
    """The files NAME.log and NAME.<n>.log: appended to, flushed at 1 s or 64 KiB.

    Of a log that reaches its limit the first part and the newest ones are kept. On a full disk lines are
    dropped, counted, and the count is said; what is logged goes on.

    Args:
        folder: where they lie.
        name: of the files, without `.log`.
        limit_bytes: of all parts together.
        whose: what is logged, for what the user must know.
        note: prints such a line.
        note_once: prints a line that other logs may say too.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
        whose: str = "",
        note: Callable[[str], None] = lambda text: None,
        note_once: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._folder = folder
        self._name = name
        self._whose = whose or name
        self._limit_bytes = limit_bytes
        self._note, self._note_once = note, note_once
        self._part = newest_part(folder, name)
        self._descriptor: int | None = None
        self._size = 0
        self._open()
        self._buffer = bytearray()
        self._buffered_at = 0.0
        self._lost = 0  # lines since the disk was full
        self._error: OSError | None = None
        self._retry_at = 0.0

    @property
    def path(self) -> Path:
        """The newest part."""
        return part_path(self._folder, self._name, self._part)

    def write(self, data: bytes) -> None:
        """Append these bytes."""
        if not self._buffer:
            self._buffered_at = time.monotonic()
        self._buffer += data
        if len(self._buffer) >= _FLUSH_BYTES:
            self.flush()

    def tick(self, now: float) -> None:
        """Flush what has been buffered for long enough."""
        if self._buffer and now - self._buffered_at >= _FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the buffer, unless the disk has no room: what exceeds a bound is then dropped and counted."""
        now = time.monotonic()
        if self._descriptor is None or not self._buffer:
            return
        if self._error is None or now >= self._retry_at:
            try:
                self._write_out()
            except OSError as error:
                self._retry_at = now + _FLUSH_S
                self._say_full(error)
        if len(self._buffer) > _UNWRITTEN_BYTES:
            self._drop()

    def close(self) -> None:
        """Flush and close; say how many lines were not kept."""
        self._retry_at = 0.0
        self.flush()
        if self._buffer:
            self._drop()
        if self._lost:
            self._say_lost()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_out(self) -> None:
        assert self._descriptor is not None
        _require_space(self._descriptor, len(self._buffer))
        if self._lost:
            # In their place, so that the log itself tells of the gap.
            why = self._error.strerror if self._error is not None else "the disk was full"
            gap = f"\n[dist-train] {self._lost} lines were not kept here: {why}\n".encode()
            self._size += os.write(self._descriptor, gap)
            self._say_lost()
        while self._buffer:
            count = self._fitting()
            if not count:
                self._begin_part()
                continue
            written = os.write(self._descriptor, memoryview(self._buffer)[:count])
            del self._buffer[:written]
            self._size += written
        self._error = None

    def _fitting(self) -> int:
        """Bytes of the buffer that this part takes: whole lines, unless it has nothing else."""
        left = self._limit_bytes // _PARTS - self._size
        if len(self._buffer) <= left:
            return len(self._buffer)
        return (self._buffer.rfind(b"\n", 0, max(0, left)) + 1) or (0 if self._size else max(1, left))

    def _begin_part(self) -> None:
        assert self._descriptor is not None
        before, self._part = self._descriptor, self._part + 1
        try:
            self._open()
        except OSError:
            self._part -= 1
            raise
        os.close(before)
        # The first part and the newest ones stay.
        oldest = self._part - (_PARTS - 1)
        if oldest >= 1:
            part_path(self._folder, self._name, oldest).unlink(missing_ok=True)
        if oldest == 1:
            self._note_once(
                f"the log of a rank has reached its limit of {size(self._limit_bytes)} (launch --log-limit): "
                "its begin and its end are kept"
            )

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _drop(self) -> None:
        self._lost += self._buffer.count(b"\n") or 1
        self._buffer.clear()

    def _say_full(self, error: OSError) -> None:
        if self._error is None:
            self._note_once(
                f"LOGS ARE NOT KEPT from here on: {error.strerror}: {self._folder}; the run goes on. How "
                "many lines are lost is said when there is room again, or at the end (see `df`)"
            )
        self._error = error

    def _say_lost(self) -> None:
        why = self._error.strerror if self._error is not None else "the disk was full"
        self._note(f"{self._lost} lines of {self._whose}'s log were not kept: {why}")
        self._lost = 0


def _require_space(descriptor: int, wanted: int) -> None:
    """Raise ENOSPC where the room is needed for more than logs."""
    disk = os.fstatvfs(descriptor)
    reserve = min(_RESERVE_BYTES, int(disk.f_blocks * disk.f_frsize * _RESERVE_SHARE))
    if disk.f_bavail * disk.f_frsize < reserve + wanted:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
