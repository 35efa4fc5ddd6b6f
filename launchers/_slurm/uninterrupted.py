"""Ctrl-C while sbatch has not answered: the job may be taken already, so the answer is waited for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType


class Uninterrupted:
    """A `with` block in which the first Ctrl-C is only noted; a second one raises KeyboardInterrupt.

    Args:
        on_first: called at the first Ctrl-C.

    Attributes:
        asked: whether there was a Ctrl-C.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        self.asked = False
        self._on_first = on_first
        self._is_main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Uninterrupted:
        if self._is_main:
            self._before = signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        if self._is_main:
            signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_first()
