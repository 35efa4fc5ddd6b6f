"""XXH3-128 of every 1 MiB block of a file: taken in memory before the write, checked at each read."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import xxhash

from dist_train.checkpoint.format.byte_stream import ByteStream
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint

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


class VerifiedReader:
    """Reads a file from start to end; every block is compared as its last byte arrives.

    Nothing that was read may be used before `finish` has returned.

    Args:
        stream: the file, just opened; closed on exit.
        name: its name, for errors.
        size: its size in bytes, by the manifest.
        digests: its block hashes, by the manifest.
        block_bytes: bytes per block.
    """

    def __init__(
        self,
        stream: ByteStream,
        name: str,
        size: int,
        digests: Sequence[str],
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.name = name
        self.size = size
        self._digests = digests
        self._hasher = BlockHasher(block_bytes)
        self._stream = stream

    def __enter__(self) -> VerifiedReader:
        actual = self._stream.size
        if actual != self.size:
            self._stream.close()
            raise DamagedCheckpoint(
                f"{self.name} has {actual} bytes; the manifest says {self.size}", file=self.name
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        start = 0
        while start < len(target):
            left_in_block = self._hasher.block_bytes - self._hasher.total % self._hasher.block_bytes
            count = self._stream.readinto(target[start : start + left_in_block])
            if not count:
                raise DamagedCheckpoint(f"{self.name} ends at byte {self._hasher.total}", file=self.name)
            self._hasher.update(target[start : start + count])
            self._check_ended_block()
            start += count

    def finish(self) -> None:
        """Read the rest of the file and compare its last block."""
        scratch = memoryview(bytearray(min(self._hasher.block_bytes, self.size)))
        while self._hasher.total < self.size:
            self.read_into(scratch[: min(len(scratch), self.size - self._hasher.total)])
        digests = self._hasher.finish()
        if digests != list(self._digests):
            self._raise(len(digests) - 1)

    def _check_ended_block(self) -> None:
        if self._hasher.total % self._hasher.block_bytes:
            return
        block = self._hasher.total // self._hasher.block_bytes - 1
        if block >= len(self._digests) or self._hasher.finish()[block] != self._digests[block]:
            self._raise(block)

    def _raise(self, block: int) -> None:
        first = block * self._hasher.block_bytes
        last = min(first + self._hasher.block_bytes, self.size) - 1
        raise DamagedCheckpoint(
            f"{self.name}: block {block} (bytes {first} to {last}) does not match its hash",
            file=self.name,
            block=block,
        )


def hash_bytes(raw: bytes) -> list[str]:
    """Return the block hashes of bytes in memory."""
    hasher = BlockHasher()
    hasher.update(memoryview(raw))
    return hasher.finish()
