"""A store in a shared file: a stale one is told from the one that peers have just made."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from dist_train.distributed.roll_call import HELLO
from dist_train.distributed.stores import FileStore, Store
from dist_train.errors import RendezvousError

logger = logging.getLogger(__name__)

# Between a peer's creation of the file and its first mark in it lie milliseconds.
_MARK_WAIT_S = 3.0


def open_store(path: Path, world_size: int) -> Store:
    """Open the file's store.

    A file that a dist-train rank made holds a mark; the roll-call then tells a peer from a dead
    group's rank. One without the mark is somebody else's, and torch would wait on it for ever.
    """
    _refuse_foreign(path)
    try:
        return FileStore(str(path), world_size)
    except RuntimeError as error:
        raise RendezvousError(f"{path} cannot be opened: {str(error).partition(chr(10))[0]}") from None


def _refuse_foreign(path: Path) -> None:
    deadline = time.monotonic() + _MARK_WAIT_S
    while True:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RendezvousError(f"{path} cannot be read: {error.strerror}") from None
        if not content or HELLO.encode() in content:
            return
        if time.monotonic() >= deadline:
            raise stale(path, f"it holds {len(content)} bytes that no rank of this run wrote")
        time.sleep(0.05)


def stale(path: Path, cause: str) -> RendezvousError:
    """The error for a file that an earlier run left behind."""
    try:
        age = f", last changed {time.time() - path.stat().st_mtime:.0f} s ago,"
    except OSError:
        age = ""
    return RendezvousError(
        f"the rendezvous file {path}{age} is not fresh",
        cause=cause,
        mend=f"rm {path}   (then start all ranks)",
    )


def remove(path: Path) -> None:
    """Remove the file and those of earlier attempts; the last one to leave calls it."""
    path.unlink(missing_ok=True)
    match = re.fullmatch(r"(.*\.attempt-)(\d+)", path.name)
    if match is None:
        return
    for number in range(int(match[2])):
        path.with_name(f"{match[1]}{number}").unlink(missing_ok=True)
