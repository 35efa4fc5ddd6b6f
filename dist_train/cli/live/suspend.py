"""Ctrl-Z: the panel goes before the shell has the terminal, and is drawn anew once the command goes on."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


@contextmanager
def suspended_within(cleared: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Until it ends, Ctrl-Z stops this process within `cleared` (in the main thread alone).

    Args:
        cleared: its context has a terminal with nothing drawn on it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield  # a shell without job control, or somebody's own way
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        with cleared():
            # To this thread: it has stopped before the call returns.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
