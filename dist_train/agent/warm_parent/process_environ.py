"""The memory that /proc/PID/environ shows: the environment of the last exec, which a fork inherits.

Processes of a run are found by it (dist_train/jobs/orphans.py), also those that a rank forks itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path

# Of /proc/PID/stat (proc(5)), counted from the state, which follows the name in parentheses.
_ENV_START, _ENV_END = 50 - 3, 51 - 3


def show_environ(environ: Mapping[str, str], first: Sequence[str]) -> None:
    """Write an environment there, as far as it fits: the memory has the size of the one at exec.

    Args:
        first: prefixes of the names that come first, and so are never what is left out.
    """
    start, end = _area()
    ordered = sorted(environ.items(), key=lambda item: not item[0].startswith(tuple(first)))
    data = fitting(
        [f"{name}={value}".encode(errors="surrogateescape") for name, value in ordered], end - start
    )
    ctypes.memmove(start, data, end - start)


def fitting(entries: Sequence[bytes], size: int) -> bytes:
    """Join whole entries up to this size, and fill it with zeros."""
    data = bytearray()
    for entry in entries:
        if len(data) + len(entry) + 1 <= size:
            data += entry + b"\0"
    return bytes(data.ljust(size, b"\0"))


def _area() -> tuple[int, int]:
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(fields[_ENV_START]), int(fields[_ENV_END])
