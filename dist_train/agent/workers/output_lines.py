"""A rank's output as lines; of a progress bar, which writes over itself, its state now and then.

tqdm and `print(…, end="\\r")` end no line for as long as an epoch takes. Without this a bar would be shown at
its end, all its states in one line, and be kept until then.
"""

from __future__ import annotations

import time

_STATE_EVERY_S = 10.0
_LONGEST = 16 << 20


class OutputLines:
    """One stream of a rank, from chunks as they are read to lines without their newline."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._overwrites = False
        self._shown_at = time.monotonic()

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that the chunk ends; a line above 16 MiB is cut."""
        *ended, rest = chunk.split(b"\n")
        lines = []
        for text in ended:
            self._append(text)
            lines.append(self._take())
        self._append(rest)
        if len(self._partial) > _LONGEST:
            lines.append(self._take())
        return lines

    def state(self) -> bytes | None:
        """Return how a progress bar stands, if it has moved and no line was shown for 10 s."""
        now = time.monotonic()
        if not self._overwrites or now - self._shown_at < _STATE_EVERY_S:
            return None
        self._overwrites, self._shown_at = False, now
        return _last_written(self._partial)

    def rest(self) -> bytes:
        """Return what is left without a newline at the end of the stream."""
        return self._take()

    def _append(self, text: bytes) -> None:
        self._partial += text
        if b"\r" in text:
            self._overwrites = True
            again = b"\r" if self._partial.endswith(b"\r") else b""
            self._partial = bytearray(_last_written(self._partial) + again)

    def _take(self) -> bytes:
        line = _last_written(self._partial)
        self._partial.clear()
        self._overwrites, self._shown_at = False, time.monotonic()
        return line


def _last_written(text: bytearray) -> bytes:
    return bytes(text.rstrip(b"\r").rpartition(b"\r")[2])
