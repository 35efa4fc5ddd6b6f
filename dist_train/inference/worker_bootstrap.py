"""Start a worker: tie it to its parent before the seconds that importing torch takes."""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection

from dist_train.jobs.parent_death_signal import end_with_parent


def start(connection: Connection, device: str, threads: int, parent: int | None) -> None:
    """Tie this process to its parent, then `serve`.

    Args:
        parent: its pid, where this process is to be ended together with it.
    """
    if parent is not None:
        end_with_parent(parent, signal.SIGKILL)
    # Ctrl-C is the parent's: it closes us. Processes that the model starts can be interrupted as usual.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from dist_train.inference.worker_loop import serve

    serve(connection, device, threads)
