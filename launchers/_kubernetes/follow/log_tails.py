"""Follow several logs at once: a thread for each, one queue."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping

from dist_train.errors import DistTrainError

Lines = Callable[[], Iterator[str]]


class LogTails:
    """Lines of all sources as they arrive, each with the prefix of its source."""

    def __init__(self, sources: Mapping[str, Lines]) -> None:
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._open = len(sources)
        self._stopped = False
        self.error: DistTrainError | None = None
        self._threads = [
            threading.Thread(target=self._read, args=(prefix, lines), name="pod-log", daemon=True)
            for prefix, lines in sources.items()
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether every source has ended and every line was taken."""
        return self._open == 0

    def take(self, wait_s: float) -> str | None:
        """Return the next line; None where none arrives in time."""
        try:
            line = self._queue.get(timeout=wait_s)
        except queue.Empty:
            return None
        if line is None:
            self._open -= 1
        return line

    def stop(self) -> None:
        """Join the threads, after the sources were closed."""
        self._stopped = True
        for thread in self._threads:
            thread.join(2.0)

    def _read(self, prefix: str, lines: Lines) -> None:
        try:
            for line in lines():
                if self._stopped:
                    return
                self._queue.put(prefix + line)
        except DistTrainError as error:
            self.error = self.error or error
        finally:
            self._queue.put(None)
