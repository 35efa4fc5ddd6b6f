"""Hash in other threads while this one reads or writes: xxhash and the kernel let go of the interpreter.

What is written is only hashed there: every change of a file stays in the calling thread, in the order that a
crash must find it in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, Generic, TypeVar

from dist_train.jobs.machine import usable_cores

logger = logging.getLogger(__name__)
T = TypeVar("T")

# Hashing is several times faster than any storage: more threads than this only wait.
MOST_THREADS = 4
# What is smaller is done before a thread has begun.
WORTH_BYTES = 16 << 20


class _Piece(Generic[T]):
    """Work that is done once: in a thread that comes to it, else where its value is asked for."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = Lock()
        self._values: list[T] = []
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return bool(self._values) or self._error is not None

    def __call__(self) -> None:
        with self._lock:
            if self.is_done:
                return
            try:
                self._values.append(self._work())
            except BaseException as error:
                self._error = error

    def drop(self) -> None:
        """Wait if it has begun; else it never begins."""
        with self._lock:
            if not self.is_done:
                self._error = RuntimeError("the work was dropped")

    def value(self) -> T:
        """Return the value, or raise the work's error."""
        self()
        if self._error is not None:
            raise self._error
        return self._values[0]


class HashThreads:
    """Takes work that hashes; without threads each piece is done when its value is asked for.

    Args:
        pool: the threads.
    """

    def __init__(self, pool: ThreadPoolExecutor | None = None, count: int = 0) -> None:
        self._pool = pool
        self.count = count
        self._started: list[_Piece[Any]] = []

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """Start `work`; return what waits for its value, or raises its error."""
        if self._pool is None:
            return work
        piece = _Piece(work)
        self._started = [each for each in self._started if not each.is_done]
        self._started.append(piece)
        try:
            self._pool.submit(piece)
        except RuntimeError as why:  # a limit of threads or of memory; or the interpreter is on its way out
            logger.info("no other thread hashes: %s", why)
            self._pool = None
        return piece.value

    def start_or_do(self, work: Callable[[], T]) -> Callable[[], T]:
        """The same; but with much waiting already, the work is done here and now."""
        if sum(not each.is_done for each in self._started) <= self.count:
            return self.start(work)
        piece = _Piece(work)
        piece()
        return piece.value

    def drop(self) -> None:
        """Wait for what has begun, and let the rest never begin."""
        for piece in self._started:
            piece.drop()
        self._started = []


@contextmanager
def hash_threads(data_bytes: int) -> Iterator[HashThreads]:
    """Give threads for so many bytes: no more than cores that this process may use, less its own one."""
    count = min(usable_cores().amount - 1, MOST_THREADS) if data_bytes >= WORTH_BYTES else 0
    if count < 1:
        yield HashThreads()
        return
    with ThreadPoolExecutor(count, "dist-train-hash") as pool:
        try:
            yield HashThreads(pool, count)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
