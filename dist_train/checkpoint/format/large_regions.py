"""Memory of one tensor each, in the kernel's large pages, made ready in other threads while a file is read.

A page that is touched for the first time is a fault, and costs several times as much as the copy of its
bytes. Regions that are made one after the other lie side by side, so that a large page may reach over the
border of two; each is given back by itself, when its tensor goes.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, partial

import torch

from dist_train.checkpoint.format.hash_threads import HashThreads

# Smaller tensors are left to torch's allocator.
LARGE_BYTES = 256 << 10
_PIECE_BYTES = 8 << 20
_AHEAD_BYTES = 4 * _PIECE_BYTES
_MADV_POPULATE_WRITE = 23


class LargeRegions:
    """The regions of the large tensors of one file, handed out in the order of its tensors.

    Args:
        sizes: of all tensors in bytes; those below LARGE_BYTES get none.
        threads: make memory ready ahead of what is read.
    """

    def __init__(self, sizes: Sequence[int], threads: HashThreads) -> None:
        # All before any is touched: a large page lies wholly in what is mapped when it is touched.
        self._regions = deque(_new_region(size) for size in sizes if size >= LARGE_BYTES)
        self._threads = threads
        # What is not ready yet: region, first byte, number of bytes.
        self._pieces = deque(
            (region, start, min(_PIECE_BYTES, len(region) - start))
            for region in self._regions
            if region is not None
            for start in range(0, len(region), _PIECE_BYTES)
        )
        self._ahead = 0

    def take(self) -> mmap.mmap | None:
        """Return the next tensor's region; None where this system gives none."""
        return self._regions.popleft() if self._regions else None

    def begin_ahead(self, filled: int) -> None:
        """Have more made ready, as `filled` more bytes of the regions will be filled now."""
        self._ahead -= filled
        while self._pieces and self._ahead < _AHEAD_BYTES and self._threads.count:
            region, start, count = self._pieces.popleft()
            self._threads.start(partial(_populate, region, start, count))
            self._ahead += count


def pieces_of(view: memoryview) -> list[memoryview]:
    """Cut what is to be filled, so that memory is made ready ahead of each piece."""
    return [view[start : start + _PIECE_BYTES] for start in range(0, len(view), _PIECE_BYTES)]


def tensor_in(region: mmap.mmap, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Return a tensor that owns `region`; its storage begins where the region begins."""
    storage = torch.frombuffer(region, dtype=torch.uint8).untyped_storage()
    tensor = torch.empty(0, dtype=dtype)
    tensor.set_(storage, 0, tuple(shape), torch.empty(tuple(shape), dtype=dtype, device="meta").stride())
    return tensor


def _new_region(size: int) -> mmap.mmap | None:
    try:
        region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            region.madvise(mmap.MADV_HUGEPAGE)
    return region


def _populate(region: mmap.mmap, start: int, count: int) -> None:
    """Make pages ready to be written; a kernel that does not know how makes them ready when they are."""
    madvise = _libc_madvise()
    if madvise is not None:
        base = ctypes.addressof(ctypes.c_char.from_buffer(region))
        madvise(base + start, count, _MADV_POPULATE_WRITE)


@cache
def _libc_madvise() -> ctypes._NamedFuncPointer | None:
    # Not mmap.madvise, which holds the interpreter while the kernel clears pages.
    if sys.platform != "linux":
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
