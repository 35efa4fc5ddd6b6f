"""A response that is read line by line, and that another thread can end."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

_CHUNK = 64 * 1024


class LineStream:
    """The body of a watch or of a log."""

    def __init__(self, response: Any) -> None:
        self._response = response
        # Kept from the start: a closed response has none, and close() would wait for the reading thread.
        self._socket = getattr(getattr(response, "_connection", None), "sock", None)

    def lines(self) -> Iterator[bytes]:
        """Yield whole lines as they arrive; the rest after the last newline is a line too."""
        rest = b""
        for chunk in self._response.stream(_CHUNK, decode_content=True):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
        if rest:
            yield rest

    def interrupt(self) -> None:
        """End the reader's wait, from another thread."""
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # already closed

    def close(self) -> None:
        """Close the connection, by the reader: it cannot be reused, since the rest was not read."""
        self._response.close()
        self._response.release_conn()
