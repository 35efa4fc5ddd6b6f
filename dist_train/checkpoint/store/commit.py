"""Publish a staged checkpoint: one atomic commit, and what to do where it does not go smoothly."""

from __future__ import annotations

import logging

from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.store.checkpoint_names import read_manifest, read_manifest_head
from dist_train.checkpoint.store.fence import read_fence, written_too_late
from dist_train.checkpoint.store.quarantine import quarantine
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.superseded import set_aside_superseded
from dist_train.checkpoint.store.verify import check_checkpoint
from dist_train.errors import CheckpointError, CheckpointWriteError
from dist_train.rundir.step_names import step_name

logger = logging.getLogger(__name__)

TRIES = 3


def publish(
    storage: CheckpointStorage, staging: str, manifest: Manifest, after: int | None = None
) -> Manifest:
    """Commit a staging area that is complete and sealed.

    Args:
        storage: where it is.
        staging: its name.
        manifest: its manifest.
        after: the step that the run went on from; later checkpoints are moved aside first. None where it
            is not known: then those of later steps than this one.

    Returns:
        The manifest that is at the step now: ours, or that of an equal one that was there before.

    Raises:
        CheckpointWriteError: a newer attempt owns the location.
        OSError: the commit failed.
    """
    name = step_name(manifest.step)
    replaced = ""
    for _ in range(TRIES):
        _refuse_if_superseded(storage, manifest)
        if storage.exists(name):
            reason = _why_not_the_same(storage, name, manifest)
            if reason is None:
                # The same state: what was saved after it is its future, too.
                existing = read_manifest(storage, name)
                storage.remove(staging)
                storage.sync()
                return existing
            if manifest.step == after:
                # Our own save of this step, made before what followed it: it is replaced.
                replaced = storage.quarantine(name)
            else:
                quarantine(storage, name, reason)
        set_aside_superseded(storage, manifest.step, after)
        try:
            storage.commit(staging, name)
        except OSError as error:
            # A request may be sent twice (NFS renames, retries of an object store) and answered for the
            # second time: if ours is there, the first one worked.
            if not _is_ours(storage, name, manifest):
                if isinstance(error, FileExistsError):
                    continue
                raise
        storage.sync()
        if replaced:
            storage.remove(replaced)
        return manifest
    raise CheckpointWriteError(
        f"{storage.locate(name)} came back {TRIES} times while step {manifest.step} was being committed",
        cause="another process writes to the same checkpoint directory",
        hint="give each run its own directory",
    )


def _refuse_if_superseded(storage: CheckpointStorage, manifest: Manifest) -> None:
    fence = read_fence(storage)
    if fence is not None and not fence.is_of(manifest.run_id):
        raise CheckpointWriteError(
            f"step {manifest.step} is not committed: run {fence.run_id} has taken over {storage.location}",
            hint="end this process, or give each run its own checkpoint directory",
        )
    if fence is not None and fence.attempt > manifest.attempt:
        raise CheckpointWriteError(
            f"step {manifest.step} is not committed: attempt {fence.attempt} has taken over "
            f"{storage.location} from this attempt {manifest.attempt}",
            hint="end this process, or give each run its own checkpoint directory",
        )


def _why_not_the_same(storage: CheckpointStorage, name: str, ours: Manifest) -> str | None:
    """Compare the checkpoint that is there with ours; None if it holds the same state."""
    try:
        theirs = check_checkpoint(storage, name)
    except (CheckpointError, OSError) as error:
        return str(error)
    fence = read_fence(storage)
    if fence is not None and not fence.admits(theirs):
        return written_too_late(theirs)
    if theirs.state_hash != ours.state_hash:
        hashes = f"state_hash {ours.state_hash}, not {theirs.state_hash}"
        return f"step {ours.step} was reached again with another state ({hashes})"
    logger.info("step %s is there already with the same state", ours.step)
    return None


def _is_ours(storage: CheckpointStorage, name: str, manifest: Manifest) -> bool:
    try:
        return read_manifest_head(storage, name).self_hash == manifest.self_hash
    except (CheckpointError, OSError):
        return False
