"""Streams of bytes, as the format reads and writes them: on any storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Append these bytes.
Write = Callable[[memoryview], None]


class ByteStream(Protocol):
    """A file that is read from its start to its end."""

    @property
    def size(self) -> int:
        """Size of the file in bytes."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer, or a part of it, with the next bytes; return how many, 0 at the end."""

    def close(self) -> None:
        """Release what the stream holds."""
