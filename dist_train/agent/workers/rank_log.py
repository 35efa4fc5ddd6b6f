"""The log file of one rank."""

from __future__ import annotations

import os
import time
from pathlib import Path

_FLUSH_BYTES = 64 * 1024
# With the wait of the thread that reads the ranks this makes a second.
_FLUSH_S = 0.7


class RankLog:
    """The file logs/attempt-<k>/rank-<r>.log: appended to, flushed at 1 s or 64 KiB."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._buffer = bytearray()
        self._buffered_at = 0.0

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
        """Write the buffer; on a full disk its lines are dropped, so that the agent goes on."""
        if self._descriptor is not None and self._buffer:
            try:
                os.write(self._descriptor, self._buffer)
            except OSError:
                pass
        self._buffer.clear()

    def close(self) -> None:
        """Flush and close."""
        self.flush()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
