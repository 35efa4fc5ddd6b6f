"""Imports without the cyclic garbage collector: torch's take a fifth less time, and the process's exit too.

torch's modules are some 300,000 objects that live to the end. While they are made the collector goes
through them again and again, and the interpreter's own end goes through all of them four times.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Import without the collector; all objects that then exist are exempt from it for good.

    Only where no object of the user's exists yet: in a reference cycle it would never be finalized. An import
    that fails leaves all as it was.
    """
    with without_collector():
        yield
        gc.freeze()


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch the collector off meanwhile; if it was off before, it stays off. Also a decorator.

    Only in the main thread: a process that was forked while another thread works would have none for good.
    For short work that makes very many objects and no cycles: with 16,000 tensors the collections, each of
    which looks at every object of the process, took as long as all the rest of a save.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
