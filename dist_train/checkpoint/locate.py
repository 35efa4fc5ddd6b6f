"""Rank 0 chooses the checkpoint; the other ranks open exactly that one."""

from __future__ import annotations

import errno
import logging
import os
import time
from pathlib import Path

from dist_train.checkpoint.damage import Damaged
from dist_train.checkpoint.fence import read_fence
from dist_train.checkpoint.layout import step_directories
from dist_train.checkpoint.manifest import read_manifest
from dist_train.checkpoint.quarantine import quarantine
from dist_train.checkpoint.reader import Loaded, read_checkpoint
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)

# A file server may show a rename to other nodes only after its attribute caches have aged.
APPEAR_S = 90.0
_RETRY_S = 0.5


def newest_good(directory: Path, *, set_aside: bool = True) -> Loaded | None:
    """The newest checkpoint that is whole, in memory; None where there is none at all.

    Damaged ones that are newer are moved to quarantine/, but only once a whole one has been found: if
    all are damaged, they stay where they are, so that asking again gives the same answer.

    Args:
        directory: the folder of checkpoints.
        set_aside: False changes nothing there: for whoever only reads.

    Raises:
        CheckpointError: there are checkpoints, and none of them can be used; each is named with its fault.
        Unsupported: the newest was written by a later version.
    """
    faults: dict[Path, Damaged] = {}
    fence = read_fence(directory)
    for path in reversed(step_directories(directory).values()):
        try:
            manifest = read_manifest(path)
            if fence is not None and not fence.admits(manifest):
                reason = f"written by attempt {manifest.attempt} after a newer attempt had begun"
                if set_aside:
                    _set_aside({path: reason})
                else:
                    logger.warning("%s is not used: %s", path, reason)
                continue
        except (Damaged, FileNotFoundError):
            pass  # read_checkpoint says what is wrong with it
        try:
            loaded = read_checkpoint(path)
        except Damaged as error:
            logger.warning("%s cannot be used: %s", path, error)
            faults[path] = error
            continue
        if set_aside:
            _set_aside({path: error.what for path, error in faults.items()})
        return loaded
    if faults:
        raise CheckpointError(
            f"no checkpoint in {directory} can be used: "
            + "; ".join(f"{path.name}: {error.what}" for path, error in faults.items()),
            mend="restore one of them from a copy, or remove them to begin at step 0",
        )
    return None


def _set_aside(reasons: dict[Path, str]) -> None:
    for path, reason in reasons.items():
        try:
            quarantine(path, reason)
        except OSError as error:
            # A directory that may only be read can still be resumed from.
            logger.warning("%s is not used (%s) and stays in place: %s", path, reason, error)


def open_exactly(path: Path, self_hash: str, appear_s: float = APPEAR_S) -> Loaded:
    """Read the checkpoint that rank 0 chose, waiting while this node does not see it yet.

    Raises:
        CheckpointError: it did not appear, or it is another one than rank 0 read.
    """
    deadline = time.monotonic() + appear_s
    while True:
        try:
            # Opening by name asks the server; listing the parent could be answered from a cache.
            manifest = read_manifest(path)
            break
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE):
                raise
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{path} did not appear on {os.uname().nodename} within {appear_s:g} s",
                    cause="rank 0 reads it there; is the directory on storage that all nodes share?",
                ) from error
            time.sleep(_RETRY_S)
    if manifest.self_hash != self_hash:
        raise CheckpointError(
            f"{path} on {os.uname().nodename} is another checkpoint than the one that rank 0 reads",
            cause=f"its hash is {manifest.self_hash}, not {self_hash}",
            mend="put the checkpoints on storage that all nodes share",
        )
    return read_checkpoint(path)
