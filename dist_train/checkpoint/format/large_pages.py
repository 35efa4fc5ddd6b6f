"""Large pages of the kernel for large tensors that are about to be read.

A page that is touched for the first time is a fault, and costs several times as much as the copy of its
bytes: a GiB takes 262,144 faults in pages of 4 KiB. Advice before the first touch (MADV_HUGEPAGE) comes too
late for torch's own memory: the allocator has written before each tensor, and there the page is small. So the
kernel is asked to make large pages of what is there (MADV_COLLAPSE, Linux 6.1), which for memory that is not
touched yet is one clearing of it; where it cannot, it gets the advice. The memory stays torch's own, to be
resized, shared and freed.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache

import torch

from dist_train.jobs.machine import has_large_pages

PAGE_BYTES = 2 << 20
# The memory of smaller tensors may be a part of what the allocator has handed out before.
LARGE_BYTES = 256 << 10
_MADV_COLLAPSE = 25


class LargePages:
    """Large pages for tensors that lie side by side, over their borders too.

    Args:
        tensors: all that will be filled; what they hold is kept.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        # Whatever the allocator has between two tensors belongs to them.
        gap = 2 * mmap.PAGESIZE
        spans: list[tuple[int, int]] = []
        if _libc_madvise() is not None:
            for start, end in sorted(_place(tensor) for tensor in tensors if tensor.nbytes >= LARGE_BYTES):
                if spans and start - spans[-1][1] <= gap:
                    start = spans.pop()[0]
                spans.append((start, end))
        self._spans = spans

    def ranges(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Return where the large pages that begin in a tensor start and end; all lie within the tensors."""
        start, end = _place(tensor)
        number = bisect_right(self._spans, (start, sys.maxsize)) - 1
        if tensor.nbytes < LARGE_BYTES or number < 0:
            return start, start
        first = -(-start // PAGE_BYTES) * PAGE_BYTES
        last = min(-(-end // PAGE_BYTES), self._spans[number][1] // PAGE_BYTES) * PAGE_BYTES
        return first, max(first, last)

    def prepare(self, tensor: torch.Tensor) -> None:
        """Have the memory of one of the tensors in large pages, as far as the system gives any."""
        madvise = _libc_madvise()
        first, last = self.ranges(tensor)
        if madvise is None or first >= last:
            return
        # Where no page is there at all, none is made large: one byte is looked at. Nothing is written, as
        # another thread may be filling the tensor before.
        for start in range(first, last, PAGE_BYTES):
            ctypes.c_char.from_address(start).value  # noqa: B018
        if madvise(first, last - first, _MADV_COLLAPSE):
            madvise(first, last - first, mmap.MADV_HUGEPAGE)


def _place(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


@cache
def _libc_madvise() -> ctypes._NamedFuncPointer | None:
    # MADV_COLLAPSE does not ask whether large pages are switched off.
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE") or not has_large_pages():
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
