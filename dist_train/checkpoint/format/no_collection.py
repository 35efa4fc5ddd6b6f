"""Build or parse records of many tensors without the search for cycles, which would begin again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Do not collect cycles meanwhile; also a decorator.

    For short work that makes very many objects and no cycles: with 16,000 tensors the collections, each of
    which looks at every object of the process, took as long as all the rest of a save.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
