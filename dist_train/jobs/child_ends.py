"""How this process's children end: the kernel keeps no exit code where SIGCHLD is ignored."""

from __future__ import annotations

import signal


def keep_exit_codes() -> None:
    """Put SIGCHLD back to its default if who started this process has ignored it; call it in the main thread.

    An ignored signal survives exec, and subprocess takes an exit code that is not there for 0: a success.
    """
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
