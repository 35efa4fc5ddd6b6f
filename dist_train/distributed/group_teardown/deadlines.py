"""Deadlines for starts and exits that torch itself does not bound: one that hangs is ended with stacks."""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dist_train.errors import ExitCode


@contextmanager
def bounded_start(seconds: float, what: str) -> Iterator[None]:
    """End the process with code 69 and every thread's stack if the body takes longer than this.

    The last resort: the steps inside have their own time-outs with better messages.
    """
    done = threading.Event()

    def watch() -> None:
        if done.wait(seconds):
            return
        print(f"dist-train: {what} has not ended within {seconds:.0f} s; stacks follow", file=sys.stderr)
        faulthandler.dump_traceback(file=sys.__stderr__ or 2, all_threads=True)
        sys.stderr.flush()
        os._exit(ExitCode.UNAVAILABLE)

    threading.Thread(target=watch, name="dist-train-start-bound", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextmanager
def bounded_end(seconds: float) -> Iterator[None]:
    """End the process with code 1 and its stacks if the body takes longer than this.

    The timer is faulthandler's C thread: it fires even when the body hangs while holding the GIL,
    which is how gloo's destructor can hang.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def bound_process_end(seconds: float, *, exiting: bool) -> None:
    """End the process if it still runs this long after the interpreter's exit began.

    For exits that leave a process group undestroyed because a peer may be dead: the group's
    destructor waits for collectives that no peer will join.

    Args:
        exiting: the interpreter is exiting already, so that atexit takes no further function.
    """
    if exiting:
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
    else:
        atexit.register(faulthandler.dump_traceback_later, seconds, exit=True, file=sys.__stderr__ or 2)
