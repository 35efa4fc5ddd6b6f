"""A process that ends with its parent, also after `kill -9`; and one that sees how its children end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, death_signal: int) -> None:
    """Ask for `death_signal` when the parent ends; end at once if it has ended already. Linux only.

    Call it from the main thread: the request belongs to the thread that makes it, and the signal comes
    when the *thread* that started this process ends (prctl(2)).

    Args:
        parent: its pid, as it was when it started this process.
        death_signal: what the kernel is to send.
    """
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # It ended before the prctl call: the kernel will send no signal.
        os.kill(os.getpid(), signal.SIGKILL)


def keep_exit_codes() -> None:
    """Put SIGCHLD back to its default if who started this process has ignored it; call it in the main thread.

    An ignored signal survives exec, and subprocess takes an exit code that is not there for 0: a success.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
