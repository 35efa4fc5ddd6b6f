"""Ask the kernel for large pages where large tensors are about to be read.

A page that is touched for the first time is a fault, and costs several times as much as the copy of its
bytes: a GiB takes 262,144 faults in pages of 4 KiB, and 512 in pages of 2 MiB.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from functools import cache

import torch

# The memory of smaller tensors may be a part of what the allocator has handed out before.
LARGE_BYTES = 256 << 10


def advise_large_pages(tensors: Iterable[torch.Tensor]) -> None:
    """Have the memory of large tensors come in large pages at its first touch, where the system has them.

    It stays torch's own memory, to be resized, shared and freed like any other. So a large page in which the
    allocator has written already, before each tensor, comes in small ones: of a tensor of 8 MiB a quarter.
    Give all tensors before any is filled: a large page comes only where all of it is mapped.
    """
    madvise = _libc_madvise()
    if madvise is None:
        return
    for tensor in tensors:
        if tensor.nbytes >= LARGE_BYTES:
            start = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
            madvise(start, tensor.data_ptr() + tensor.nbytes - start, mmap.MADV_HUGEPAGE)


@cache
def _libc_madvise() -> ctypes._NamedFuncPointer | None:
    if sys.platform != "linux" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
