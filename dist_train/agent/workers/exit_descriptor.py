"""A descriptor that becomes readable when a child ends: a pidfd, or a pipe where the kernel has none."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


def exit_descriptor(pid: int) -> int:
    """Open it for a child of this process; the caller closes it.

    pidfd_open is missing before Linux 5.3, and refused by the seccomp filters of some older container
    runtimes. Then a thread waits for the child, and closes the other end of a pipe.
    """
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        reading, writing = os.pipe()
        threading.Thread(target=_wait, args=(pid, writing), name=f"exit-of-{pid}", daemon=True).start()
        return reading


def _wait(pid: int, writing: int) -> None:
    with suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # whoever reads the pipe reaps it
    os.close(writing)
