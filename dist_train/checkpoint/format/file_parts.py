"""Some blocks of a file in parts: read, where they have not been, and hashed by one thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import xxhash

from dist_train.checkpoint.format.byte_stream import ReadAt
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint

# Read by one call and hashed while it is in the processor's own cache.
PART_BYTES = 512 << 10
_scratch = threading.local()


@dataclass(frozen=True)
class FilePart:
    """A part of a file.

    Args:
        count: of bytes.
        view: where they are, or will be; None where they are only hashed.
        start: their place in the file; None where they have been read.
    """

    count: int
    view: memoryview | None
    start: int | None = None


class FileParts:
    """Parts that follow each other, the first at the start of a block.

    Args:
        name: of the file, for errors.
        block_bytes: bytes per block.
        read_at: reads parts that have not been read.
    """

    def __init__(self, name: str, block_bytes: int, read_at: ReadAt | None) -> None:
        self._name, self._block_bytes, self._read_at = name, block_bytes, read_at
        self._parts: list[FilePart] = []
        self.bytes = 0

    def add(self, part: FilePart) -> None:
        """Append a part."""
        self._parts.append(part)
        self.bytes += part.count

    def digests(self) -> list[str]:
        """Read what has not been read; return the block hashes, the last block may be shorter.

        Raises:
            DamagedCheckpoint: the file ends before.
        """
        found: list[str] = []
        digest, left = xxhash.xxh3_128(), self._block_bytes
        for part in self._parts:
            done = 0
            while done < part.count:
                piece = self._piece(part, done, min(left, PART_BYTES))
                digest.update(piece)
                done, left = done + len(piece), left - len(piece)
                if not left:
                    found.append(digest.hexdigest())
                    digest.reset()
                    left = self._block_bytes
        return found if left == self._block_bytes else [*found, digest.hexdigest()]

    def _piece(self, part: FilePart, done: int, most: int) -> memoryview:
        if part.start is None:
            assert part.view is not None
            return part.view[done : done + min(most, self._block_bytes)]
        count = min(most, part.count - done)
        piece = _own_scratch()[:count] if part.view is None else part.view[done : done + count]
        self._read_whole(piece, part.start + done)
        return piece

    def _read_whole(self, target: memoryview, start: int) -> None:
        assert self._read_at is not None
        while target:
            count = self._read_at(target, start)
            if not count:
                raise DamagedCheckpoint(f"{self._name} ends at byte {start}", file=self._name)
            target, start = target[count:], start + count


def _own_scratch() -> memoryview:
    """Memory of this thread, used again and again."""
    found: memoryview | None = getattr(_scratch, "view", None)
    if found is None:
        found = _scratch.view = memoryview(bytearray(PART_BYTES))
    return found
