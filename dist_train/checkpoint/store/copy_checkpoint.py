"""Copy a checkpoint to another storage: every byte is compared as it is read, and read back at the end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.layout import MANIFEST, staging_name
from dist_train.checkpoint.format.manifest import FileEntry, Manifest, names_of
from dist_train.checkpoint.store.checkpoint_names import is_there, read_manifest_head, step_names
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.checkpoint.store.verify import check_checkpoint, open_verified, read_committed
from dist_train.errors import CheckpointError, CheckpointWriteError

_CHUNK_BYTES = 4 * BLOCK_BYTES


@dataclass(frozen=True)
class CopiedCheckpoint:
    """What was copied.

    Args:
        manifest: of the checkpoint.
        location: of the copy.
        was_there: an equal one was there, and nothing was written.
    """

    manifest: Manifest
    location: str
    was_there: bool = False


def copy_checkpoint(source: CheckpointStorage, name: str, target: CheckpointStorage) -> CopiedCheckpoint:
    """Copy one checkpoint; it appears in the target whole, or not at all.

    Raises:
        DamagedCheckpoint: the source is not whole.
        CheckpointError: the target holds another checkpoint of this step, or those of another run.
        CheckpointWriteError: the copy does not read back as it was written.
        OSError: one of the two storages failed.
    """
    manifest = read_committed(source, name)
    target.prepare()
    _refuse_other_run(target, manifest)
    if is_there(target, name):
        return _same(target, name, manifest)
    staging = staging_name(manifest.step, manifest.attempt)
    target.remove(staging)
    target.create_staging(staging)
    try:
        for entry in manifest.files:
            _copy_file(source, name, entry, target, staging)
        _put(target, f"{staging}/{MANIFEST}", source.read(f"{name}/{MANIFEST}"))
        target.seal(staging)
        target.commit(staging, name)
    except FileExistsError:
        # Another copy was faster.
        with suppress(OSError):
            target.remove(staging)
        return _same(target, name, manifest)
    except BaseException:
        with suppress(OSError):
            target.remove(staging)
        raise
    target.sync()
    _read_back(target, name)
    return CopiedCheckpoint(manifest, target.locate(name))


def _copy_file(
    source: CheckpointStorage, name: str, entry: FileEntry, target: CheckpointStorage, staging: str
) -> None:
    for file in names_of(entry):
        if file != entry.name:  # its block hashes: compared when the file itself was opened
            _put(target, f"{staging}/{file}", source.read(f"{name}/{file}"))
    with (
        open_verified(source, name, entry) as reader,
        target.new_file(f"{staging}/{entry.name}") as write,
    ):
        box = memoryview(bytearray(min(_CHUNK_BYTES, entry.bytes)))
        done = 0
        while done < entry.bytes:
            count = min(len(box), entry.bytes - done)
            reader.read_into(box[:count])
            write(box[:count])
            done += count
        reader.finish()  # raises before the commit


def _put(target: CheckpointStorage, key: str, content: bytes) -> None:
    with target.new_file(key) as write:
        write(memoryview(content))


def _same(target: CheckpointStorage, name: str, manifest: Manifest) -> CopiedCheckpoint:
    try:
        theirs = check_checkpoint(target, name)
    except DamagedCheckpoint as error:
        raise CheckpointError(
            f"{target.locate(name)} is there already, and damaged: {error.what}",
            hint="remove it, and copy again",
        ) from error
    if theirs.self_hash != manifest.self_hash:
        raise CheckpointError(
            f"{target.locate(name)} is there already, and is another checkpoint",
            cause=f"its state_hash is {theirs.state_hash}, not {manifest.state_hash}",
            hint="copy to another place",
        )
    return CopiedCheckpoint(manifest, target.locate(name), was_there=True)


def _refuse_other_run(target: CheckpointStorage, manifest: Manifest) -> None:
    for name in step_names(target).values():
        try:
            theirs = read_manifest_head(target, name)
        except (CheckpointError, FileNotFoundError):
            continue
        if theirs.run_id != manifest.run_id:
            raise CheckpointError(
                f"{target.location} holds checkpoints of run {theirs.run_id or 'without an id'}; this one is "
                f"of run {manifest.run_id or 'without an id'}",
                cause="a run takes what it finds in its place for its own",
                hint="copy to a place of its own",
            )


def _read_back(target: CheckpointStorage, name: str) -> None:
    target.drop_cached(name)
    try:
        check_checkpoint(target, name)
    except DamagedCheckpoint as error:
        raise CheckpointWriteError(
            f"{target.locate(name)} does not read back as it was written: {error.what}",
            hint="the source is untouched; check the target's disk or server",
        ) from error
