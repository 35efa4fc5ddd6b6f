"""A worker's first acts, before it loads torch: the seconds that takes are its parent's to cut short."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

from dist_train.jobs.parent import end_with_parent


def begin(connection: Connection, device: str, threads: int, parent: int | None) -> None:
    """Tie this process to its parent, then `serve`.

    Args:
        parent: its pid, where the kernel may be asked to end us with it.
    """
    if parent is not None:
        end_with_parent(parent, signal.SIGKILL)
    # Ctrl-C is the parent's: it closes us. What the model starts may be interrupted as ever.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from dist_train.inference.child import serve

    serve(connection, device, threads)
