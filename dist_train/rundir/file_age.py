"""How old a file is by the clock of the file system that holds it: hosts' clocks differ.

A clock that is wrong by a minute would make a live run look dead, or a dead one alive.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def file_age_s(path: Path, folder: Path) -> float | None:
    """Seconds since `path` was written; infinite where it is missing, None where that cannot be found out.

    Args:
        path: the file.
        folder: of the same file system, and writable: the file server gives a file here its own time.
    """
    try:
        # open() asks the server; stat() may return this host's cached attributes.
        with open(path, "rb") as file:
            written = os.fstat(file.fileno()).st_mtime
    except FileNotFoundError:
        return float("inf")
    except OSError:
        return None
    now = _server_time(folder)
    return None if now is None else now - written


def _server_time(folder: Path) -> float | None:
    clock = folder / f".clock-{secrets.token_hex(8)}"
    try:
        clock.touch()
        return clock.stat().st_mtime
    except OSError:  # a reader of another user's run, a read-only or a full file system
        return None
    finally:
        with suppress(OSError):
            clock.unlink()
