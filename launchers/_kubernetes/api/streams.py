"""An answer that comes line by line, and that another thread may end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

_CHUNK = 64 * 1024


class Stream:
    """The body of a watch, or of a log."""

    def __init__(self, response: Any) -> None:
        self._response = response
        # A closed response no longer knows it; and close() would wait for the thread that reads.
        self._socket = getattr(getattr(response, "_connection", None), "sock", None)

    def lines(self) -> Iterator[bytes]:
        """Whole lines as they come; what stands after the last newline at the end is a line too."""
        rest = b""
        for chunk in self._response.stream(_CHUNK, decode_content=True):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def interrupt(self) -> None:
        """From another thread: the reader's wait ends now."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended meanwhile

    def close(self) -> None:
        """By the reader: the connection is not used again, since its rest was not read."""
        self._response.close()
        self._response.release_conn()
