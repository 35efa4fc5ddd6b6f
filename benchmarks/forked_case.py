"""Measure one call in a process of its own: wall and processor time, and the peak of memory.

Before the time begins, the code of all libraries is mapped (in a forked process it is mapped when it is used,
which would count as memory of the call); what the allocator has free is given back (in a forked process its
pages are copied when they are used again); and memory is touched and freed: a hypervisor may have taken back
what the machine had free, and then a first touch costs ten times a fault of the machine's own.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

Body = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """One run of a case."""

    wall: float
    cpu: float
    peak: float  # bytes above what the process had before


def in_child(prepare: Callable[[], Body], memory_bytes: int = 0) -> Measured | None:
    """Fork; prepare, then run and measure what `prepare` returned. None where it fails.

    `memory_bytes`: so much memory is touched and freed before.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            body = prepare()
            map_code()
            give_back_free_memory()
            touch_free_memory(memory_bytes)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            before = _status("VmRSS")
            wall, cpu = time.perf_counter(), time.process_time()
            body()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            os.write(write_end, json.dumps([wall, cpu, _status("VmHWM") - before]).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answers:
        answer = answers.read()
    _, status = os.waitpid(child, 0)
    return Measured(*json.loads(answer)) if status == 0 else None


def map_code() -> None:
    """Map every page of the libraries that this process has loaded."""
    populate_read = 22
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        place, access, _offset, _device, inode, *path = line.split()
        if inode != "0" and access[0] == "r" and access[3] == "p" and path[0].split(".so")[1:]:
            first, last = (int(part, 16) for part in place.split("-"))
            madvise(first, last - first, populate_read)


def give_back_free_memory() -> None:
    """Have the allocator keep no memory that the parent has used: its pages would be copied at first use."""
    with suppress(AttributeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)


def touch_free_memory(count: int) -> None:
    """Touch so much memory and leave it free."""
    if count:
        region = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        region.madvise(mmap.MADV_HUGEPAGE)
        for start in range(0, count, mmap.PAGESIZE):
            region[start] = 1
        region.close()


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)
