"""XXH3-128 of every 1 MiB block of a file, taken in memory before the write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import xxhash

BLOCK_BYTES = 1 << 20


class BlockHasher:
    """Takes the bytes of a file in order and gives one hash per block."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self.block_bytes = block_bytes
        self.total = 0
        self._hash = xxhash.xxh3_128()
        self._digests: list[str] = []

    def update(self, piece: memoryview) -> None:
        """Add `piece` (a view of bytes)."""
        start = 0
        while start < len(piece):
            left_in_block = self.block_bytes - self.total % self.block_bytes
            part = piece[start : start + left_in_block]
            self._hash.update(part)
            self.total += len(part)
            start += len(part)
            if len(part) == left_in_block:
                self._end_block()

    def finish(self) -> list[str]:
        """Return the hashes; the last block may be shorter."""
        if self.total % self.block_bytes:
            self._end_block()
        return self._digests

    def _end_block(self) -> None:
        self._digests.append(self._hash.hexdigest())
        self._hash.reset()


def chunks_of(views: Iterable[memoryview], chunk_bytes: int) -> Iterator[list[memoryview]]:
    """Cut views into lists of `chunk_bytes` each; the last has what is left."""
    chunk: list[memoryview] = []
    left = chunk_bytes
    for view in views:
        start = 0
        while len(view) - start >= left:
            yield [*chunk, view[start : start + left]]
            start, chunk, left = start + left, [], chunk_bytes
        if start < len(view):
            chunk.append(view[start:] if start else view)
            left -= len(chunk[-1])
    if chunk:
        yield chunk


def hash_views(views: Iterable[memoryview], block_bytes: int = BLOCK_BYTES) -> list[str]:
    """Return the block hashes of bytes that begin where a block begins."""
    hasher = BlockHasher(block_bytes)
    for view in views:
        hasher.update(view)
    return hasher.finish()


def hash_bytes(raw: bytes) -> list[str]:
    """Return the block hashes of bytes in memory."""
    return hash_views([memoryview(raw)])
