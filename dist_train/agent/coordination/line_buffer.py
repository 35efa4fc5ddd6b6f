"""Lines out of the bytes of a connection, bounded in length and in time."""

from __future__ import annotations

import socket
import time

_CHUNK = 65536


class LineTooLong(ValueError):
    """The other side sent more without a newline than it may."""


class LineBuffer:
    """Splits what is fed into lines; keeps what came after the last newline.

    Args:
        longest: of one line, in bytes.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._rest = bytearray()
        self._searched = 0

    def feed(self, chunk: bytes) -> None:
        """Add what was received."""
        self._rest += chunk

    def next(self) -> bytes | None:
        """Return the next line without its newline, None where it is not complete; raises LineTooLong."""
        end = self._rest.find(b"\n", self._searched)
        if max(end, len(self._rest) if end < 0 else 0) > self.longest:
            raise LineTooLong(f"a line of more than {self.longest} bytes")
        if end < 0:
            self._searched = len(self._rest)
            return None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        self._searched = 0
        return line


class LineReader:
    """Reads lines from a blocking socket.

    Args:
        longest: of one line, in bytes.
    """

    def __init__(self, connection: socket.socket, longest: int) -> None:
        self._connection = connection
        self._buffer = LineBuffer(longest)

    def trust(self, longest: int) -> None:
        """Accept lines of this length from now on: the other side is an agent of this run."""
        self._buffer.longest = longest

    def line(self, within_s: float | None = None) -> bytes | None:
        """Read the next line without its newline; None at the end; raises TimeoutError, LineTooLong.

        Args:
            within_s: for the whole line, however slowly it comes; None: the socket's own time-out, per piece.
        """
        deadline = None if within_s is None else time.monotonic() + within_s
        while (line := self._buffer.next()) is None:
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError("the line did not come in time")
                self._connection.settimeout(left)
            chunk = self._connection.recv(_CHUNK)
            if not chunk:
                return None
            self._buffer.feed(chunk)
        return line
