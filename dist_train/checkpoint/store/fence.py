"""fence.json: which attempt owns a checkpoint location, and which older checkpoints it accepts.

A rank 0 that was declared lost may still commit a checkpoint later, and no check before a commit is
atomic with it on NFS. So the newest attempt writes down what it found; readers quarantine any checkpoint
of an older attempt that is not on that list.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import xxhash

from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, UnsupportedCheckpoint
from dist_train.checkpoint.format.layout import FENCE, temporary_record
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.store.checkpoint_names import leftovers, read_manifest_head, step_names
from dist_train.checkpoint.store.quarantine import quarantine
from dist_train.checkpoint.store.run_identity import claim_location
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fence:
    """The owner of a checkpoint location.

    Args:
        attempt: the newest attempt.
        accepts: (step, self_hash) of the checkpoints that it found.
        run_id: the run; empty where the process has none, None where an earlier version wrote the fence.
    """

    attempt: int
    accepts: frozenset[tuple[int, str]]
    run_id: str | None = None

    def admits(self, manifest: Manifest) -> bool:
        """True for this attempt's own checkpoints, later ones, and those that it found."""
        own = self.is_of(manifest.run_id) and manifest.attempt >= self.attempt
        return own or (manifest.step, manifest.self_hash) in self.accepts

    def is_of(self, run_id: str) -> bool:
        """Whether the owner is this run, as far as the fence says."""
        return self.run_id in (None, run_id)

    def to_bytes(self) -> bytes:
        """Canonical JSON with a hash over the rest."""
        record: dict[str, object] = {
            "attempt": self.attempt,
            "accepts": [list(pair) for pair in sorted(self.accepts)],
        }
        if self.run_id is not None:
            record["run_id"] = self.run_id
        record["schema_version"] = 1
        return dump_canonical({**record, "self_hash": xxhash.xxh3_128_hexdigest(dump_canonical(record))})


def read_fence(storage: CheckpointStorage) -> Fence | None:
    """Read the fence; None where none was written, or where it is damaged (logged as a warning)."""
    try:
        raw = storage.read(FENCE)
    except FileNotFoundError:
        return None
    try:
        record = load_canonical(raw)
        if not isinstance(record, dict):
            raise ValueError("not an object")
        own = record.pop("self_hash", None)
        if own != xxhash.xxh3_128_hexdigest(dump_canonical(record)) or record.get("schema_version") != 1:
            raise ValueError("it does not match its own hash")
        accepts = frozenset((int(step), str(digest)) for step, digest in record["accepts"])
        run_id = record.get("run_id")
        return Fence(int(record["attempt"]), accepts, None if run_id is None else str(run_id))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s is damaged and not used: %s", storage.locate(FENCE), error)
        return None


def begin_attempt(storage: CheckpointStorage, attempt: int | None, run_id: str = "") -> int:
    """Make this attempt the owner: remove what older attempts left unfinished, write the fence.

    It reads manifests, never data, so its cost does not grow with the size of the model.

    Args:
        storage: where the checkpoints are; created if it does not exist.
        attempt: this attempt's number; None takes the next free one, and so does a number that is taken in
            a storage that outlives run directories.
        run_id: of this run; empty where it has none.

    Returns:
        The number of the attempt.

    Raises:
        CheckpointError: a newer attempt, another run or another live process owns the location.
    """
    storage.prepare()
    before = read_fence(storage)
    manifests = _readable(storage)
    claim_location(storage, run_id, None if before is None else before.run_id, manifests.values())
    if attempt is None:
        known = [found.attempt for found in manifests.values()] + ([before.attempt] if before else [])
        attempt = max(known, default=-1) + 1
    newer = before is not None and before.is_of(run_id) and before.attempt >= attempt
    if newer and run_id and storage.outlives_run_directory:
        # The number is that of the run directory, which was lost with its node: this is a later attempt.
        assert before is not None
        attempt = before.attempt + 1
    elif before is not None and newer and before.attempt > attempt:
        raise CheckpointError(
            f"{storage.location} belongs to attempt {before.attempt}; this is attempt {attempt}",
            cause="a newer attempt of this run has taken over",
            hint="end this process, or give each run its own checkpoint directory",
        )
    for name in leftovers(storage, attempt):
        storage.remove(name)
    for name in [name for name, found in manifests.items() if before and not before.admits(found)]:
        quarantine(storage, name, written_too_late(manifests.pop(name)))
    accepts = frozenset((found.step, found.self_hash) for found in manifests.values())
    fence = Fence(attempt, accepts, run_id)
    if fence != before:
        storage.replace_record(FENCE, fence.to_bytes(), temporary_record(FENCE, attempt))
    return attempt


def written_too_late(manifest: Manifest) -> str:
    """Say why the fence does not admit a checkpoint."""
    return f"written by attempt {manifest.attempt} after a newer attempt had begun"


def _readable(storage: CheckpointStorage) -> dict[str, Manifest]:
    found = {}
    for name in step_names(storage).values():
        try:
            found[name] = read_manifest_head(storage, name)
        except (DamagedCheckpoint, UnsupportedCheckpoint, FileNotFoundError) as error:
            # load_latest will name it; it must not keep a new attempt from beginning. Any other OSError may
            # pass: a fence without a whole checkpoint would send that one to quarantine.
            logger.debug("%s has no readable manifest: %s", storage.locate(name), error)
    return found
