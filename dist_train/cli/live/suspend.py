"""Ctrl-Z: remove the panel before the shell gets the terminal; it is drawn again after `fg`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


@contextmanager
def suspended_within(cleared: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Handle Ctrl-Z: stop this process inside `cleared` (only in the main thread).

    Args:
        cleared: a context in which nothing is drawn on the terminal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTSTP) is not signal.SIG_DFL:
        yield  # a shell without job control, or another handler
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        with cleared():
            # To this thread: the process stops before the call returns.
            signal.pthread_kill(threading.get_ident(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, stop)

    signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
