"""Write one checkpoint: plan the files, check the free space, stage, hash, publish."""

from __future__ import annotations

import errno
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from dist_train.checkpoint.format.blocks import BLOCK_BYTES, hash_bytes
from dist_train.checkpoint.format.hash_threads import HashThreads
from dist_train.checkpoint.format.hashing import digested
from dist_train.checkpoint.format.layout import MANIFEST, STATE_JSON, staging_name
from dist_train.checkpoint.format.manifest import FileEntry, Manifest
from dist_train.checkpoint.format.tensor_entries import TensorEntry
from dist_train.checkpoint.rank_files import (
    WrittenFiles,
    WrittenPart,
    join_parts,
    listed,
    place,
    plan_files,
    put,
    write_file,
)
from dist_train.checkpoint.state.snapshot import Snapshot
from dist_train.checkpoint.store.checkpoint_names import committed_steps, note_written
from dist_train.checkpoint.store.commit import publish
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import note_reserved
from dist_train.errors import CheckpointWriteError
from dist_train.jobs.frozen_imports import without_collector

# For the manifest's hashes, and blocks that are only partly filled.
SLACK_BYTES = 64 << 10


class StagedCheckpoint:
    """A checkpoint on its way into a storage, by rank 0: begun, filled, published; or discarded.

    Each step raises CheckpointWriteError where the storage refuses; then nothing is committed, and older
    checkpoints stay. As a context, an error discards what was staged.

    Args:
        storage: where to.
        snapshot: what rank 0 holds.
        others_bytes: of what is written besides: other ranks' files, and parts of sharded tensors.
    """

    def __init__(self, storage: CheckpointStorage, snapshot: Snapshot, others_bytes: int = 0) -> None:
        self._storage, self._snapshot = storage, snapshot
        self._files = plan_files(snapshot.tensors, snapshot.views, snapshot.digests)
        needed = sum(file.content.bytes for file in self._files) + len(snapshot.state_json) + SLACK_BYTES
        needed += others_bytes
        self._needed = needed + needed // BLOCK_BYTES * 40
        self.staging = staging_name(snapshot.step, snapshot.attempt)
        self._entries: list[FileEntry] = []
        self._digests: list[Callable[[], dict[str, bytes]]] = []

    def begin(self) -> None:
        """Create the staging area, if there is room."""
        with self._named():
            self._storage.prepare()
            self._storage.remove(self.staging)
            _check_free_space(self._storage, self._snapshot.step, self._needed)
            self._storage.create_staging(self.staging)

    def write(self, threads: HashThreads) -> None:
        """Write rank 0's files.

        Args:
            threads: hash what is written next.
        """
        storage, staging, state_json = self._storage, self.staging, self._snapshot.state_json
        with self._named():
            for file in self._files:
                entry, digests = write_file(storage, staging, file, threads)
                self._entries.append(entry)
                self._digests.append(digests)
            put(storage, staging, STATE_JSON, state_json)
            hashes = hash_bytes(state_json)
            self._entries.append(listed(storage, staging, STATE_JSON, len(state_json), hashes))

    def publish(self, others: Iterable[WrittenFiles] = (), after: int | None = None) -> Manifest:
        """Commit; return the manifest that is there in the end (an equal one may have been there).

        Args:
            others: what was written besides.
            after: the step that the run went on from, as `store.commit.publish` takes it.
        """
        storage, snapshot = self._storage, self._snapshot
        with self._named():
            manifest, raw = self._manifest(others)
            put(storage, self.staging, MANIFEST, raw)
            note_written(manifest, raw)
            note_reserved(snapshot.state_json, snapshot.reserved)
            storage.seal(self.staging)
            return publish(storage, self.staging, manifest, after)

    @without_collector()
    def _manifest(self, others: Iterable[WrittenFiles]) -> tuple[Manifest, bytes]:
        snapshot, entries = self._snapshot, list(self._entries)
        own = {key: digest for wait in self._digests for key, digest in wait().items()}
        own |= snapshot.digests
        digests = digested(snapshot.tensors, own)
        whole = {key for key in snapshot.weights.values() if key in digests}
        weights = {key: digests[key].digest.hex() for key in whole}
        placed: dict[str, TensorEntry] = place(self._files, snapshot.tensors, weights)
        parts: dict[str, list[WrittenPart]] = defaultdict(list)
        for other in others:
            entries += other.files
            placed |= other.tensors
            digests |= other.digests
            for key, some in other.parts.items():
                parts[key] += some
        for key, of_ranks in parts.items():
            placed[key], digests[key] = join_parts(key, of_ranks, snapshot.whole_digests.get(key))
        return snapshot.manifest(placed, entries, digests).sealed_bytes()

    def discard(self) -> None:
        """Remove what was staged."""
        with suppress(OSError):
            self._storage.remove(self.staging)

    def __enter__(self) -> StagedCheckpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the storage in an error of the system."""
        try:
            yield
        except OSError as error:
            what = f"the checkpoint of step {self._snapshot.step}"
            raise write_failed(error, self._storage, what, self._needed) from error


def _check_free_space(storage: CheckpointStorage, step: int, needed: int) -> None:
    free = storage.free_bytes()
    if free is not None and free < needed:
        raise CheckpointWriteError(
            f"the checkpoint of step {step} needs {needed:,} bytes; "
            f"{storage.location} has {free:,} bytes free",
            cause="nothing is deleted to make room",
            hint=_hint(storage, "make room"),
        )


def write_failed(
    error: OSError, storage: CheckpointStorage, target: str, needed: int = 4096
) -> CheckpointWriteError:
    """Make the error for a write that the storage refused: what stays, and what to do about it."""
    reason = error.strerror or str(error)
    what = f"{target} could not be written: {error.filename or storage.location}: {reason}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointWriteError(what, hint=_hint(storage, "fix that"))
    try:
        free = storage.free_bytes()
    except OSError:
        free = None
    shown = "an unknown number of" if free is None else f"{free:,}"
    quota = " (a quota may allow less)" if error.errno == errno.EDQUOT else ""
    return CheckpointWriteError(
        what,
        cause=f"it needs {needed:,} bytes and {shown} bytes are free{quota}; nothing is deleted to make room",
        hint=_hint(storage, "make room"),
    )


def _hint(storage: CheckpointStorage, act: str) -> str:
    try:
        steps = committed_steps(storage)
    except OSError:
        return f"older checkpoints stay; {act} and resume"
    stays = (
        f"the last good checkpoint (step {steps[-1]}) stays" if steps else "there was no checkpoint before it"
    )
    return f"{stays}; {act} and resume"
