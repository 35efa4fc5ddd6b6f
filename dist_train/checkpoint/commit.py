"""The moment a checkpoint begins to exist: one rename, and what to do where it does not go smoothly."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from dist_train.checkpoint.fence import read_fence
from dist_train.checkpoint.layout import step_name
from dist_train.checkpoint.manifest import Manifest, read_manifest
from dist_train.checkpoint.quarantine import quarantine
from dist_train.checkpoint.storage import remove_tree, sync_directory
from dist_train.checkpoint.verify import check_checkpoint
from dist_train.errors import CheckpointError, CheckpointWriteError

logger = logging.getLogger(__name__)

TRIES = 3


def publish(directory: Path, staging: Path, manifest: Manifest) -> Manifest:
    """Rename a staged and synced checkpoint into place.

    Returns:
        The manifest that stands at the step now: ours, or that of an equal one that was there before.

    Raises:
        CheckpointWriteError: a newer attempt owns the directory.
        OSError: the rename failed.
    """
    target = directory / step_name(manifest.step)
    for _ in range(TRIES):
        _refuse_if_superseded(directory, manifest)
        if target.exists():
            reason = _why_not_the_same(directory, target, manifest)
            if reason is None:
                standing = read_manifest(target)
                remove_tree(staging)
                sync_directory(directory)
                return standing
            quarantine(target, reason)
        try:
            os.rename(staging, target)
        except OSError as error:
            # NFS may send a rename twice and answer for the second: if ours is there, the first one worked.
            if not _is_ours(target, manifest):
                if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                    continue
                raise
        sync_directory(directory)
        return manifest
    raise CheckpointWriteError(
        f"{target} came back {TRIES} times while step {manifest.step} was being committed",
        cause="another process writes to the same checkpoint directory",
        mend="give each run its own directory",
    )


def _refuse_if_superseded(directory: Path, manifest: Manifest) -> None:
    fence = read_fence(directory)
    if fence is not None and fence.attempt > manifest.attempt:
        raise CheckpointWriteError(
            f"step {manifest.step} is not committed: attempt {fence.attempt} has taken over {directory} "
            f"from this attempt {manifest.attempt}"
        )


def _why_not_the_same(directory: Path, target: Path, ours: Manifest) -> str | None:
    """None if `target` can stand for ours."""
    try:
        theirs = check_checkpoint(target)
    except (CheckpointError, OSError) as error:
        return str(error)
    fence = read_fence(directory)
    if fence is not None and not fence.admits(theirs):
        return f"written by attempt {theirs.attempt} after a newer attempt had begun"
    if theirs.state_hash != ours.state_hash:
        hashes = f"state_hash {ours.state_hash}, not {theirs.state_hash}"
        return f"step {ours.step} was reached again with another state ({hashes})"
    logger.info("step %s is there already with the same state", ours.step)
    return None


def _is_ours(target: Path, manifest: Manifest) -> bool:
    try:
        return read_manifest(target).self_hash == manifest.self_hash
    except (CheckpointError, OSError):
        return False
