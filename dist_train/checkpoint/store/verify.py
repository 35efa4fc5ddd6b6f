"""Check and list checkpoints without loading them; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_train.checkpoint.format.block_hashes import parse_blocks
from dist_train.checkpoint.format.canonical_json import load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint
from dist_train.checkpoint.format.hash_threads import HashThreads, hash_threads
from dist_train.checkpoint.format.layout import MANIFEST, STATE_JSON, blocks_name
from dist_train.checkpoint.format.manifest import FileEntry, Manifest, check_listing, listed_files, missing
from dist_train.checkpoint.format.verified_reader import VerifiedReader
from dist_train.checkpoint.store.checkpoint_names import (
    is_there,
    read_manifest,
    read_manifest_head,
    step_names,
)
from dist_train.checkpoint.store.fence import Fence, read_fence
from dist_train.checkpoint.store.known_records import KnownRecords
from dist_train.checkpoint.store.open_storage import Location, open_checkpoint, open_storage
from dist_train.checkpoint.store.storage import CheckpointStorage
from dist_train.errors import CheckpointError, NotFoundError
from dist_train.rundir.step_names import parse_step

_known_reserved: KnownRecords[dict[str, Any]] = KnownRecords()


@dataclass(frozen=True)
class VerifyReport:
    """The outcome of one verification; the checkpoint is whole if `problems` is empty.

    Args:
        path: the checkpoint's directory; its name alone where it is not on a file system.
        manifest: None where it cannot be read.
        problems: what is wrong, one sentence each.
        location: the path or URL.
    """

    path: Path
    manifest: Manifest | None
    problems: tuple[str, ...] = field(default=())
    location: str = ""

    @property
    def ok(self) -> bool:
        """True when every byte is as it was written."""
        return not self.problems

    @property
    def bytes(self) -> int:
        """Size of the data files."""
        return sum(entry.bytes for entry in self.manifest.files) if self.manifest else 0


@dataclass(frozen=True)
class ListedCheckpoint:
    """One line of a listing; the data files were not read."""

    step: int
    path: Path
    manifest: Manifest | None
    problem: str | None
    score: float | None
    location: str = ""


def read_committed(
    storage: CheckpointStorage,
    name: str,
    read: Callable[[CheckpointStorage, str], Manifest] = read_manifest_head,
) -> Manifest:
    """Read a checkpoint's manifest and compare its list of files with those that are there.

    Args:
        storage: where it is.
        name: its name.
        read: `read_manifest` where the entries of the tensors are wanted, too.

    Raises:
        DamagedCheckpoint: no manifest, a damaged one, a missing or an unlisted file.
    """
    try:
        manifest = read(storage, name)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"there is no {MANIFEST}", file=MANIFEST) from error
    if parse_step(name) not in (None, manifest.step):
        raise DamagedCheckpoint(f"{name} holds step {manifest.step}", file=MANIFEST)
    there = storage.files(name)
    # A listing may lag; the file itself is asked for before it is called missing.
    there |= {file for file in listed_files(manifest) - there if storage.exists(f"{name}/{file}")}
    check_listing(manifest, there)
    return manifest


def open_verified(
    storage: CheckpointStorage, name: str, entry: FileEntry, threads: HashThreads | None = None
) -> VerifiedReader:
    """Open a file of a checkpoint; its bytes are compared with the manifest's hashes as they are read.

    Args:
        storage: where it is.
        name: the checkpoint.
        entry: the file.
        threads: as for `VerifiedReader`.

    Raises:
        DamagedCheckpoint: it is not there, or not its block hashes; a link that leads nowhere is listed, too.
    """
    digests = block_hashes(storage, name, entry)
    with _named_if_missing(entry.name):
        stream = storage.open(f"{name}/{entry.name}")
    return VerifiedReader(stream, entry.name, entry.bytes, digests, entry.block_bytes, threads)


def block_hashes(storage: CheckpointStorage, name: str, entry: FileEntry) -> list[str]:
    """Return the block hashes of a file of a checkpoint, from the manifest or the file beside it.

    Raises:
        DamagedCheckpoint: they are not there, or not those of the manifest.
    """
    if not entry.blocks_xxh3:
        return entry.xxh3_128
    blocks = blocks_name(entry.name)
    with _named_if_missing(blocks):
        raw = storage.read(f"{name}/{blocks}")
    return parse_blocks(entry, raw)


@contextmanager
def _named_if_missing(file: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise missing(file) from error


def check_file(storage: CheckpointStorage, name: str, entry: FileEntry) -> None:
    """Read a whole file of a checkpoint and compare every block.

    Raises:
        DamagedCheckpoint: naming the file and the first bad block.
    """
    with hash_threads(entry.bytes) as threads, open_verified(storage, name, entry, threads) as reader:
        reader.finish()


def check_checkpoint(storage: CheckpointStorage, name: str) -> Manifest:
    """Read every byte of a checkpoint and compare it.

    Raises:
        DamagedCheckpoint: naming the file and block.
    """
    manifest = read_committed(storage, name)
    for entry in manifest.files:
        check_file(storage, name, entry)
    return manifest


def verify_checkpoint(path: str | Path) -> VerifyReport:
    """Read every byte of one checkpoint; all problems are listed, not only the first.

    Args:
        path: its directory or URL.

    Raises:
        NotFoundError: there is no such checkpoint.
    """
    return verify_stored(*open_checkpoint(path))


def verify_stored(storage: CheckpointStorage, name: str) -> VerifyReport:
    """`verify_checkpoint` for a checkpoint of a storage."""
    if not is_there(storage, name):
        raise NotFoundError(f"no checkpoint directory {storage.locate(name)}")
    problems: list[str] = []
    manifest: Manifest | None = None
    try:
        manifest = read_manifest(storage, name)
        read_committed(storage, name)
    except FileNotFoundError:
        problems.append(f"there is no {MANIFEST}")
    except (CheckpointError, OSError) as error:
        problems.append(str(error))
    for entry in manifest.files if manifest else ():
        try:
            check_file(storage, name, entry)
        except (DamagedCheckpoint, OSError) as error:
            if str(error) not in problems:  # that it is missing may be known from the listing
                problems.append(str(error))
    return VerifyReport(storage.path_of(name), manifest, tuple(problems), storage.locate(name))


def list_checkpoints(directory: Location) -> list[ListedCheckpoint]:
    """List every `step-<n>` of a checkpoint directory, oldest first, with its manifest.

    Args:
        directory: a directory, a URL, or a storage.
    """
    storage = open_storage(directory)
    fence = read_fence(storage)
    return [_listed(storage, fence, step, name) for step, name in step_names(storage).items()]


def _listed(storage: CheckpointStorage, fence: Fence | None, step: int, name: str) -> ListedCheckpoint:
    manifest, problem, score = None, None, None
    try:
        manifest = read_committed(storage, name, read_manifest)
        if fence is not None and not fence.admits(manifest):
            problem = f"written by attempt {manifest.attempt}, which had been given up"
        score = read_score(storage, name)
    except (CheckpointError, OSError) as error:
        problem = str(error)
    return ListedCheckpoint(step, storage.path_of(name), manifest, problem, score, storage.locate(name))


def read_score(storage: CheckpointStorage, name: str) -> float | None:
    """Read the score that was given to save(), from state.json; None if none was."""
    score = read_reserved(storage, name).get("score")
    return float(score) if isinstance(score, int | float) else None


def read_reserved(storage: CheckpointStorage, name: str) -> dict[str, Any]:
    """Read what save() stores for its own use (score, seed, non_finite) from state.json; empty without it."""
    try:
        return _known_reserved.get(storage.read(f"{name}/{STATE_JSON}"), _parse_reserved)
    except (OSError, ValueError):
        return {}


def note_reserved(state_json: bytes, reserved: dict[str, Any]) -> None:
    """Remember what `read_reserved` will return for a state.json that this process has written."""
    _known_reserved.put(state_json, reserved)


def _parse_reserved(raw: bytes) -> dict[str, Any]:
    state = load_canonical(raw)
    reserved = state.get("reserved") if isinstance(state, dict) else None
    return reserved if isinstance(reserved, dict) else {}
