"""Find the checkpoint to resume from: rank 0 chooses it, the other ranks see exactly that one."""

from __future__ import annotations

import errno
import logging
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.store.checkpoint_names import read_manifest, read_manifest_head, step_names
from dist_train.checkpoint.store.fence import Fence, read_fence, written_too_late
from dist_train.checkpoint.store.quarantine import quarantine
from dist_train.checkpoint.store.reader import LoadedCheckpoint, MemoryFor, own_memory, read_checkpoint
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import CheckpointError, UnavailableError

logger = logging.getLogger(__name__)

# A file server may show a rename to other nodes only after its attribute caches have aged.
APPEAR_S = 90.0
_RETRY_S = 0.5


@contextmanager
def reading(storage: CheckpointStorage) -> Iterator[None]:
    """Raise UnavailableError, which every rank gets, where the storage cannot be read."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"the checkpoints could not be read: {error.filename or storage.location}: "
            f"{error.strerror or error}",
            hint="nothing was changed; resume when the storage can be read again",
        ) from error


def load_newest(
    storage: CheckpointStorage,
    *,
    read_only: bool = False,
    memory_for: MemoryFor = own_memory,
    faults: dict[str, str] | None = None,
) -> LoadedCheckpoint | None:
    """Load the newest checkpoint that is whole; None where there is no checkpoint at all.

    Damaged ones that are newer are moved to quarantine/, but only once a whole one has been found: if
    all are damaged, they stay where they are, so that the next call gives the same answer.

    Args:
        storage: where the checkpoints are.
        read_only: move nothing to quarantine/.
        memory_for: where the tensors are put.
        faults: of checkpoints that are not to be used; what is found is added. With it, the files of parts
            are not verified, and the caller calls `quarantine_all` once they are.

    Raises:
        CheckpointError: there are checkpoints, and none of them can be used; each is named with its fault.
        UnsupportedCheckpoint: the newest was written by a later version.
    """
    # Words, not errors: a traceback would keep the tensors of each damaged checkpoint.
    found = {} if faults is None else faults
    fence = read_fence(storage)
    for name in reversed(step_names(storage).values()):
        if name in found:
            continue
        if (reason := _not_admitted(storage, name, fence)) is not None:
            if read_only:
                logger.warning("%s is not used: %s", storage.locate(name), reason)
            else:
                quarantine_all(storage, {name: reason})
            continue
        try:
            loaded = read_checkpoint(storage, name, memory_for, verify_parts=faults is None)
        except DamagedCheckpoint as error:
            logger.warning("%s cannot be used: %s", storage.locate(name), str(error))
            found[name] = error.what
            continue
        if not read_only and faults is None:
            quarantine_all(storage, found)
        return loaded
    if found:
        raise CheckpointError(
            f"no checkpoint in {storage.location} can be used: "
            + "; ".join(f"{name}: {what}" for name, what in found.items()),
            hint="restore one of them from a copy, or remove them to begin at step 0",
        )
    return None


def _not_admitted(storage: CheckpointStorage, name: str, fence: Fence | None) -> str | None:
    """Say why the fence does not admit a checkpoint; None if it does, or if its manifest is damaged."""
    try:
        manifest = read_manifest_head(storage, name)
    except (DamagedCheckpoint, FileNotFoundError):
        return None  # read_checkpoint gives the reason
    return written_too_late(manifest) if fence is not None and not fence.admits(manifest) else None


def quarantine_all(storage: CheckpointStorage, reasons: Mapping[str, str]) -> None:
    """Move damaged checkpoints to quarantine/; one that cannot be moved is named and stays.

    Args:
        storage: where they are.
        reasons: name -> what is wrong.
    """
    for name, reason in reasons.items():
        try:
            quarantine(storage, name, reason)
        except OSError as error:
            # A directory that may only be read can still be resumed from.
            logger.warning("%s is not used (%s) and stays in place: %s", storage.locate(name), reason, error)


def load_exact(
    storage: CheckpointStorage,
    name: str,
    self_hash: str,
    appear_s: float = APPEAR_S,
    memory_for: MemoryFor = own_memory,
) -> LoadedCheckpoint:
    """Load the checkpoint that rank 0 chose, waiting while this node does not see it yet.

    Raises:
        CheckpointError: it did not appear, it is another one than rank 0 read, or it is damaged.
    """
    see_exact(storage, name, self_hash, appear_s)
    # Files of parts are verified by all ranks together, and each block again when it is read.
    return read_checkpoint(storage, name, memory_for, verify_parts=False)


def see_exact(storage: CheckpointStorage, name: str, self_hash: str, appear_s: float = APPEAR_S) -> Manifest:
    """Read the manifest of the checkpoint that rank 0 chose, waiting while this node does not see it yet.

    Raises:
        CheckpointError: it did not appear, or it is another one than rank 0 read.
    """
    node = platform.node()
    deadline = time.monotonic() + appear_s
    while True:
        try:
            # Opening by name asks the server; listing the parent could be answered from a cache.
            manifest = read_manifest(storage, name)
            break
        except OSError as error:
            if error.errno != errno.ESTALE and not isinstance(error, FileNotFoundError):
                raise
            if time.monotonic() > deadline:
                raise CheckpointError(
                    f"{storage.locate(name)} did not appear on {node} within {appear_s:g} s",
                    cause="rank 0 reads it there; is the directory on storage that all nodes share?",
                ) from error
            time.sleep(_RETRY_S)
    if manifest.self_hash != self_hash:
        raise CheckpointError(
            f"{storage.locate(name)} on {node} is another checkpoint than the one that rank 0 reads",
            cause=f"its hash is {manifest.self_hash}, not {self_hash}",
            hint="put the checkpoints on storage that all nodes share",
        )
    return manifest
