"""fence.json: which attempt owns a checkpoint directory, and which older checkpoints it accepts.

A rank 0 that was given up for lost may still rename a checkpoint into place later, and no check before
a rename is atomic on NFS. So the newest attempt writes down what it found; readers set aside any
checkpoint of an older attempt that is not on that list.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from dist_train.checkpoint.canonical import dump_canonical, load_canonical
from dist_train.checkpoint.damage import Damaged, Unsupported
from dist_train.checkpoint.layout import FENCE, leftovers, step_directories
from dist_train.checkpoint.manifest import Manifest, read_manifest
from dist_train.checkpoint.quarantine import quarantine
from dist_train.checkpoint.storage import make_directory, remove_tree, replace_durable
from dist_train.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Fence:
    """The owner of a directory.

    Args:
        attempt: the newest attempt.
        accepts: (step, self_hash) of the checkpoints that it found.
    """

    attempt: int
    accepts: frozenset[tuple[int, str]]

    def admits(self, manifest: Manifest) -> bool:
        """True for this attempt's own checkpoints, later ones, and those that it found."""
        return manifest.attempt >= self.attempt or (manifest.step, manifest.self_hash) in self.accepts

    def to_bytes(self) -> bytes:
        """Canonical JSON with a hash over the rest."""
        record: dict[str, object] = {
            "attempt": self.attempt,
            "accepts": [list(pair) for pair in sorted(self.accepts)],
        }
        record["schema_version"] = 1
        return dump_canonical({**record, "self_hash": xxhash.xxh3_128_hexdigest(dump_canonical(record))})


def read_fence(directory: Path) -> Fence | None:
    """The fence, or None where none was written; a damaged one is said aloud and counts as none."""
    try:
        raw = (directory / FENCE).read_bytes()
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
        return Fence(int(record["attempt"]), accepts)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("%s is damaged and not used: %s", directory / FENCE, error)
        return None


def begin_attempt(directory: Path, attempt: int | None) -> int:
    """Take over `directory`: sweep what older attempts left half done, write the fence.

    It reads manifests, never data, so its cost does not grow with the size of the model.

    Args:
        directory: the checkpoint directory; made if it is not there.
        attempt: this attempt's number; None gives the next free one.

    Raises:
        CheckpointError: a newer attempt owns the directory.
    """
    make_directory(directory)
    before = read_fence(directory)
    manifests = _readable(directory)
    if attempt is None:
        known = [found.attempt for found in manifests.values()] + ([before.attempt] if before else [])
        attempt = max(known, default=-1) + 1
    if before is not None and before.attempt > attempt:
        raise CheckpointError(
            f"{directory} belongs to attempt {before.attempt}; this is attempt {attempt}",
            cause="a newer attempt of this run has taken over",
            mend="end this process, or give each run its own checkpoint directory",
        )
    for left in leftovers(directory, attempt):
        remove_tree(left)
    for path in [path for path, found in manifests.items() if before and not before.admits(found)]:
        quarantine(path, f"written by attempt {manifests.pop(path).attempt} after a newer attempt had begun")
    accepts = frozenset((found.step, found.self_hash) for found in manifests.values())
    fence = Fence(attempt, accepts)
    if fence != before:
        replace_durable(directory / FENCE, directory / f".{FENCE}.tmp-{attempt}", fence.to_bytes())
    return attempt


def _readable(directory: Path) -> dict[Path, Manifest]:
    found = {}
    for path in step_directories(directory).values():
        try:
            found[path] = read_manifest(path)
        except (Damaged, Unsupported, OSError) as error:
            # load_latest will name it; it must not keep a new attempt from beginning.
            logger.debug("%s has no readable manifest: %s", os.fspath(path), error)
    return found
