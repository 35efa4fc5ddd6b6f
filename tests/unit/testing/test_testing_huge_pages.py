"""The memory of the tests' processes: what may be moved into huge pages, and that it is."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest
from forked_workers import huge_pages


def in_huge_pages() -> int:
    """Bytes of this process's private memory in huge pages, as the kernel counts them."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    [line] = [each for each in lines if each.startswith("AnonHugePages:")]
    return int(line.split()[1]) << 10


def test_only_whole_huge_pages_of_writable_private_memory_are_taken() -> None:
    lines = [
        "00100000-00900000 rw-p 00000000 00:00 0 ",
        "00a00000-00e00000 r--p 00000000 00:00 0 ",
        "01000000-01400000 rw-s 00000000 00:00 0 ",
        "01600000-01a00000 rw-p 00000000 fe:00 4711       /usr/lib/libc.so.6",
        "01c00000-02000000 rw-p 00000000 00:00 0          [heap]",
        "02200000-02600000 rw-p 00000000 00:00 0          [stack]",
        "02800000-02900000 rw-p 00000000 00:00 0 ",
    ]
    starts = list(huge_pages._starts(lines))
    assert starts == [0x200000, 0x400000, 0x600000, 0x1C00000, 0x1E00000]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="another system")
def test_written_memory_is_in_huge_pages_and_holds_what_it_held() -> None:
    with mmap.mmap(-1, 8 * huge_pages.HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.write(b"bits" * (2 * huge_pages.HUGE))
        memory.madvise(mmap.MADV_HUGEPAGE)
        before = in_huge_pages()
        taken = huge_pages.use_huge_pages()
        if not taken:
            assert os.uname().release.split(".")[0] < "6", "this kernel can"
            return
        assert in_huge_pages() >= before + 6 * huge_pages.HUGE
        assert memory[:] == b"bits" * (2 * huge_pages.HUGE)
