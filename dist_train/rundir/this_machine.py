"""Which machine this is, for whom a pid or shared memory means something; containers may share its name."""

from __future__ import annotations

import os
from pathlib import Path


def this_machine() -> str:
    """Name the kernel's boot and the namespace in which this process's pids have their meaning.

    Returns:
        "" where the system does not tell: then nothing is known of any process of it.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""
