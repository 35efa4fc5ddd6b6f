"""Streams of bytes, as the format reads and writes them: on any storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

# Append these bytes.
Write = Callable[[memoryview], None]
# Fill a view, or a part of it, with the bytes from a place on; return how many, 0 at the end of the file.
ReadAt = Callable[[memoryview, int], int]


class ByteStream(Protocol):
    """A file that is read from its start to its end.

    One that can be read at any place, by several threads at once, has a `read_at` besides: see `read_at_of`.
    """

    @property
    def size(self) -> int:
        """Size of the file in bytes."""

    def readinto(self, buffer: memoryview, /) -> int | None:
        """Fill the buffer, or a part of it, with the next bytes; return how many, 0 at the end."""

    def close(self) -> None:
        """Release what the stream holds."""


def read_at_of(stream: ByteStream) -> ReadAt | None:
    """Return the stream's `read_at`, which leaves alone where `readinto` goes on; None where it has none."""
    found: ReadAt | None = getattr(stream, "read_at", None)
    return found
