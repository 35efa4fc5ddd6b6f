"""A rendezvous store in a shared file; a stale file of an earlier run is refused."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from dist_train.distributed.membership_check import HANDSHAKE_KEY
from dist_train.distributed.stores.torch_stores import FileStore, Store
from dist_train.errors import RendezvousError

logger = logging.getLogger(__name__)

# A peer writes its handshake key within milliseconds after it has created the file.
_HANDSHAKE_WAIT_S = 3.0


def open_store(path: Path, world_size: int) -> Store:
    """Open the file's store.

    A file made by a dist-train rank holds a handshake key; the membership check then distinguishes a
    live peer from a rank of a dead group. A file without the key is foreign: torch would wait on it for
    ever.
    """
    _refuse_foreign(path)
    try:
        return FileStore(str(path), world_size)
    except RuntimeError as error:
        raise RendezvousError(f"{path} cannot be opened: {str(error).partition(chr(10))[0]}") from None


def _refuse_foreign(path: Path) -> None:
    deadline = time.monotonic() + _HANDSHAKE_WAIT_S
    while True:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise RendezvousError(f"{path} cannot be read: {error.strerror}") from None
        if not content or HANDSHAKE_KEY.encode() in content:
            return
        if time.monotonic() >= deadline:
            raise stale(path, f"it holds {len(content)} bytes that no rank of this run wrote")
        time.sleep(0.05)


def stale(path: Path, cause: str) -> RendezvousError:
    """The error for a file that an earlier run has left."""
    try:
        age = f", last changed {time.time() - path.stat().st_mtime:.0f} s ago,"
    except OSError:
        age = ""
    return RendezvousError(
        f"the rendezvous file {path}{age} is not fresh",
        cause=cause,
        hint=f"rm {path}   (then start all ranks)",
    )


def remove(path: Path) -> None:
    """Remove the file and those of earlier attempts; called once all ranks have left the group."""
    path.unlink(missing_ok=True)
    match = re.fullmatch(r"(.*\.attempt-)(\d+)", path.name)
    if match is None:
        return
    for number in range(int(match[2])):
        path.with_name(f"{match[1]}{number}").unlink(missing_ok=True)
