"""Read a file whose block hashes are known: every block is compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType

from dist_train.checkpoint.format.blocks import BLOCK_BYTES, BlockHasher
from dist_train.checkpoint.format.byte_stream import ByteStream, read_at_of
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.file_parts import FilePart, FileParts
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
        threads: hash what was read while the next bytes are read, and read themselves where the stream
            has a `read_at`: what is filled must then stay as it is until `finish` returns. Default: each
            block is compared at once.
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
        self._threads = threads or HashThreads()
        self._read_at = read_at_of(stream) if self._threads.count else None
        self._chunk_bytes = block_bytes * (_CHUNK_BLOCKS if self._threads.count else 1)
        self._hasher = BlockHasher(block_bytes)
        # All bytes up to here have been read, or are to be read as a part of a chunk.
        self._total = 0
        self._ahead = memoryview(b"")
        # That is being read.
        self._chunk = self._new_chunk()
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
        # After an error another thread may be reading what nobody wants any more.
        self._threads.drop()
        self._stream.close()

    def read_into(self, target: memoryview) -> None:
        """Fill `target` with the next bytes."""
        self._fill(target, self._read)

    def read_later(self, target: memoryview) -> None:
        """Fill `target` with the next bytes before `finish` returns, in whatever thread comes to it."""
        self._fill(target, self._read if self._read_at is None else self._plan)

    def _fill(self, target: memoryview, fill_large: Callable[[memoryview], None]) -> None:
        while len(target):
            if not len(self._ahead) and len(target) >= AHEAD_BYTES:
                fill_large(target)
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
        box = memoryview(b"")
        while self._total < self.size:
            count = min(self._left_in_chunk(), self.size - self._total)
            if self._read_at is not None:
                self._add(FilePart(count, None, self._total))
                continue
            if self._threads.count or not box:
                # With threads each time a new one: the last one's bytes may be waiting to be hashed.
                box = memoryview(bytearray(min(self._chunk_bytes, self.size - self._total)))
            self._read(box[:count])
        if self._chunk.bytes:
            self._start_chunk()
        while self._begun:
            self._compare(*self._begun.popleft())
        rest = self._hasher.finish() if self._total % self._block_bytes and not self._threads.count else []
        self._compare(self._total // self._block_bytes, lambda: rest[-1:])
        if len(self._digests) != -(-self.size // self._block_bytes):
            self._raise(min(len(self._digests), self.size // self._block_bytes))

    def _left_in_chunk(self) -> int:
        return self._chunk_bytes - self._total % self._chunk_bytes

    def _read(self, target: memoryview) -> None:
        while len(target):
            wanted = target[: self._left_in_chunk()]
            read_at = self._read_at
            count = self._stream.readinto(wanted) if read_at is None else read_at(wanted, self._total)
            if not count:
                raise DamagedCheckpoint(f"{self.name} ends at byte {self._total}", file=self.name)
            self._add(FilePart(count, target[:count]))
            target = target[count:]

    def _plan(self, target: memoryview) -> None:
        while len(target):
            count = min(len(target), self._left_in_chunk(), self.size - self._total)
            if not count:
                raise DamagedCheckpoint(f"{self.name} ends at byte {self._total}", file=self.name)
            self._add(FilePart(count, target[:count], self._total))
            target = target[count:]

    def _add(self, part: FilePart) -> None:
        self._total += part.count
        at_end = self._total % self._chunk_bytes == 0
        if self._threads.count:
            self._chunk.add(part)
            if at_end:
                self._start_chunk()
            return
        # At once: the same memory may be filled with the next bytes.
        assert part.view is not None
        self._hasher.update(part.view)
        if at_end:
            self._compare(self._total // self._block_bytes - 1, lambda: self._hasher.finish()[-1:])

    def _new_chunk(self) -> FileParts:
        return FileParts(self.name, self._block_bytes, self._read_at)

    def _start_chunk(self) -> None:
        first = (self._total - 1) // self._chunk_bytes * (self._chunk_bytes // self._block_bytes)
        work, self._chunk = self._chunk.digests, self._new_chunk()
        threads = self._threads
        self._begun.append(
            (first, threads.start(work) if self._read_at is None else threads.start_or_do(work))
        )
        # Where this thread has done its share of the work, the oldest is done.
        most = 2 * threads.count if self._read_at is None else 4 * (threads.count + 1)
        if len(self._begun) > most:
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
