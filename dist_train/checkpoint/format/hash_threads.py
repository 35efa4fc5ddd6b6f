"""Hash in other threads while this one reads or writes: xxhash and the kernel let go of the interpreter.

Only hashes are taken there. Every file operation stays in the calling thread, in the order that a crash
must find it in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Generic, TypeVar

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

    def __call__(self) -> None:
        with self._lock:
            if self._values or self._error is not None:
                return
            try:
                self._values.append(self._work())
            except BaseException as error:
                self._error = error

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

    def start(self, work: Callable[[], T]) -> Callable[[], T]:
        """Start `work`; return what waits for its value, or raises its error."""
        if self._pool is None:
            return work
        piece = _Piece(work)
        try:
            self._pool.submit(piece)
        except RuntimeError as why:  # a limit of threads or of memory; or the interpreter is on its way out
            logger.info("no other thread hashes: %s", why)
            self._pool = None
        return piece.value


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
