"""Read a file whose block hashes are known: every block is compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

from dist_train.checkpoint.format.blocks import BLOCK_BYTES, BlockHasher, hash_views
from dist_train.checkpoint.format.byte_stream import ByteStream
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.hash_threads import HashThreads

# Small tensors are copied out of reads of this size.
AHEAD_BYTES = 256 << 10
_CHUNK_BLOCKS = 4


class VerifiedReader:
    """Reads a file from start to end; every block is compared after its last byte has arrived.

    Nothing that was read may be used before `finish` has returned.

    Args:
        stream: the file, just opened; closed on exit.
        name: its name, for errors.
        size: its size in bytes, by the manifest.
        digests: its block hashes, by the manifest.
        block_bytes: bytes per block.
        threads: hash what was read while the next bytes are read: what `read_into` has filled must then
            stay as it is until `finish` returns. Default: each block is compared at once.
    """

    def __init__(
        self,
        stream: ByteStream,
        name: str,
        size: int,
        digests: Sequence[str],
        block_bytes: int = BLOCK_BYTES,
        threads: HashThreads | None = None,
    ) -> None:
        self.name = name
        self.size = size
        self._digests = digests
        self._block_bytes = block_bytes
        self._stream = stream
        self.threads = threads or HashThreads()
        self._chunk_bytes = block_bytes * (_CHUNK_BLOCKS if self.threads.count else 1)
        self._hasher = BlockHasher(block_bytes)
        self._total = 0
        self._ahead = memoryview(b"")
        # Of the chunk that is being read.
        self._pieces: list[memoryview] = []
        self._begun: deque[tuple[int, Callable[[], list[str]]]] = deque()

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
        while len(target):
            if not len(self._ahead) and len(target) >= AHEAD_BYTES:
                self._read(target)
                return
            if not len(self._ahead):
                # Never the same one again: its bytes may be waiting to be hashed.
                self._ahead = memoryview(bytearray(max(1, min(AHEAD_BYTES, self.size - self._total))))
                self._read(self._ahead)
            count = min(len(target), len(self._ahead))
            target[:count] = self._ahead[:count]
            target, self._ahead = target[count:], self._ahead[count:]

    def finish(self) -> None:
        """Read the rest of the file and compare all blocks."""
        while self._total < self.size:
            # Each time a new one: the last one's bytes may be waiting to be hashed.
            self._read(memoryview(bytearray(min(self._chunk_bytes, self.size - self._total))))
        if self._pieces:
            self._start_chunk()
        while self._begun:
            self._compare(*self._begun.popleft())
        rest = self._hasher.finish() if self._total % self._block_bytes and not self.threads.count else []
        self._compare(self._total // self._block_bytes, lambda: rest[-1:])
        if len(self._digests) != -(-self.size // self._block_bytes):
            self._raise(min(len(self._digests), self.size // self._block_bytes))

    def _read(self, target: memoryview) -> None:
        start = 0
        while start < len(target):
            left_in_chunk = self._chunk_bytes - self._total % self._chunk_bytes
            count = self._stream.readinto(target[start : start + left_in_chunk])
            if not count:
                raise DamagedCheckpoint(f"{self.name} ends at byte {self._total}", file=self.name)
            self._total += count
            self._took(target[start : start + count])
            start += count

    def _took(self, piece: memoryview) -> None:
        at_end = self._total % self._chunk_bytes == 0
        if self.threads.count:
            self._pieces.append(piece)
            if at_end:
                self._start_chunk()
            return
        self._hasher.update(piece)
        if at_end:
            self._compare(self._total // self._block_bytes - 1, lambda: self._hasher.finish()[-1:])

    def _start_chunk(self) -> None:
        first = (self._total - 1) // self._chunk_bytes * (self._chunk_bytes // self._block_bytes)
        work = partial(hash_views, self._pieces, self._block_bytes)
        self._pieces = []
        self._begun.append((first, self.threads.start(work)))
        if len(self._begun) > 2 * self.threads.count:
            self._compare(*self._begun.popleft())

    def _compare(self, first: int, digests: Callable[[], list[str]]) -> None:
        for block, digest in enumerate(digests(), first):
            if block >= len(self._digests) or digest != self._digests[block]:
                self._raise(block)

    def _raise(self, block: int) -> None:
        first = block * self._block_bytes
        last = min(first + self._block_bytes, self.size) - 1
        raise DamagedCheckpoint(
            f"{self.name}: block {block} (bytes {first} to {last}) does not match its hash",
            file=self.name,
            block=block,
        )
