"""Read an object by ranges: from its start with some ranges ahead, or at any place by any thread."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from dist_train.checkpoint.store.object_store.bucket import Bucket

# One request: long enough that its latency does not count, short enough that several fit in memory.
RANGE_BYTES = 8 << 20
RANGES_AT_ONCE = 4


class ObjectStream:
    """An object that is read from its start, or by `read_at`.

    Args:
        bucket: where it is.
        key: its key there.

    Raises:
        FileNotFoundError: there is none.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self.size = bucket.size(key)
        self._pool: ThreadPoolExecutor | None = None
        self._coming: deque[Future[memoryview]] = deque()
        self._asked = 0
        self._here = memoryview(b"")

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the buffer, or a part of it, with the next bytes; return how many, 0 at the end."""
        if not len(self._here) and not self._take_next():
            return 0
        count = min(len(buffer), len(self._here))
        buffer[:count] = self._here[:count]
        self._here = self._here[count:]
        return count

    def read_at(self, view: memoryview, start: int) -> int:
        """Fill a view, or a part of it, from byte `start`; return how many, 0 at the end."""
        count = min(len(view), self.size - start)
        if count <= 0:
            return 0
        if count <= RANGE_BYTES:
            view[:count] = self._bucket.get_range(self._key, start, count)
            return count
        with ThreadPoolExecutor(RANGES_AT_ONCE, "dist-train-read") as pool:
            list(pool.map(lambda at: self._fill(view, start, at, count), range(0, count, RANGE_BYTES)))
        return count

    def close(self) -> None:
        """Ask for nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._coming.clear()

    def _fill(self, view: memoryview, start: int, at: int, count: int) -> None:
        end = min(at + RANGE_BYTES, count)
        view[at:end] = self._bucket.get_range(self._key, start + at, end - at)

    def _take_next(self) -> bool:
        """Wait for the next range; False at the end."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(RANGES_AT_ONCE, "dist-train-read")
        while self._asked < self.size and len(self._coming) < RANGES_AT_ONCE:
            count = min(RANGE_BYTES, self.size - self._asked)
            self._coming.append(self._pool.submit(self._bucket.get_range, self._key, self._asked, count))
            self._asked += count
        if not self._coming:
            return False
        self._here = self._coming.popleft().result()
        return True
