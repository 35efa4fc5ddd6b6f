"""A stop that Python drops is raised again.

A signal's handler stops a script by an exception: KeyboardInterrupt, or SystemExit after it has saved.
Where it hits a finalizer or a hook of a fork, Python prints "Exception ignored in …" and goes on; a
DataLoader spends the end of each epoch in such a finalizer, joining its workers. The rank would train
on until it is killed after the grace.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

_AGAIN_S = 0.02


def raise_dropped_interrupts(stopping: Callable[[], bool]) -> None:
    """Install the hook, in the main thread.

    Args:
        stopping: whether this rank has been interrupted for a stop; before that nothing is raised again.
    """
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        error = unraisable.exc_value
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and isinstance(error, (KeyboardInterrupt, SystemExit)) and stopping():
            _raise_soon(error)
        else:
            report(unraisable)

    sys.unraisablehook = hook


def _raise_soon(error: BaseException) -> None:
    # A handler raises it where the main thread is by then. Not the script's own: that has done its work.
    before = signal.getsignal(signal.SIGTERM)

    def again(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, before)
        raise error.with_traceback(None)

    signal.signal(signal.SIGTERM, again)
    _thread.start_new_thread(_come_again, ())


def _come_again() -> None:
    time.sleep(_AGAIN_S)
    _thread.interrupt_main(signal.SIGTERM)
