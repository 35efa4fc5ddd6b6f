"""The manifest, version 1: a checkpoint exists if and only if this file is there and its hash holds."""

from __future__ import annotations

from collections.abc import Set
from typing import Annotated, Any, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, UnsupportedCheckpoint
from dist_train.checkpoint.format.layout import MANIFEST

FORMAT: Literal["dist-train-checkpoint"] = "dist-train-checkpoint"
VERSION = 1
DATA_KEYS = ("n", "fingerprint", "seed", "dataset_id", "permutation_version", "batch_size")

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
# One plain name: a manifest must not lead a reader out of its directory.
FileName = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_][A-Za-z0-9_.-]*\z")]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Shard(_Record):
    """A box of a tensor: which file holds it, where it begins in the tensor, its shape."""

    file: FileName
    offset: list[Count]
    shape: list[Count]


class TensorEntry(_Record):
    """One tensor; a replicated one has one shard."""

    dtype: str
    shape: list[Count]
    shards: list[Shard]


class FileEntry(_Record):
    """One file beside the manifest."""

    name: FileName
    bytes: Count
    block_bytes: Annotated[int, Field(gt=0)] = BLOCK_BYTES
    xxh3_128: list[Hash]


class Manifest(_Record):
    """The record of a checkpoint: everything that a reader must know before it reads any data."""

    format: Literal["dist-train-checkpoint"] = FORMAT
    version: Literal[1] = 1
    run_id: str
    attempt: Count
    step: Count
    epoch: Count
    samples_in_epoch: Count
    samples_total: Count
    world_size: Annotated[int, Field(ge=1)]
    strategy: str
    created_at: str
    tensors: dict[str, TensorEntry]
    aliases: dict[str, str]
    files: list[FileEntry]
    data: dict[str, JsonValue]
    config_xxh3: str
    determinism: dict[str, JsonValue]
    weights_hash: Hash
    state_hash: Hash
    self_hash: str = ""

    def sealed(self) -> Manifest:
        """Return the same manifest with its self_hash."""
        return self.model_copy(update={"self_hash": _self_hash(self.model_dump())})

    def to_bytes(self) -> bytes:
        """Return canonical JSON, as it is stored."""
        return dump_canonical(self.model_dump())


def parse_manifest(raw: bytes) -> Manifest:
    """Parse a manifest and check that every byte of it is as it was written.

    Raises:
        DamagedCheckpoint: not canonical, or the hash over everything but self_hash differs.
        UnsupportedCheckpoint: whole, but of another format or a later version.
    """
    try:
        record = load_canonical(raw)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} is not canonical JSON: {error}", file=MANIFEST) from error
    if not isinstance(record, dict) or record.get("self_hash") != _self_hash(record):
        raise DamagedCheckpoint(f"{MANIFEST} does not match its own hash", file=MANIFEST)
    if (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise UnsupportedCheckpoint(
            f"format {record.get('format')!r} version {record.get('version')!r}; "
            f"this dist-train reads {FORMAT!r} version {VERSION}",
            hint="read it with the dist-train version that wrote it, or a later one",
        )
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        raise DamagedCheckpoint(f"{MANIFEST} is not a version-1 manifest: {error}", file=MANIFEST) from error


def check_listing(manifest: Manifest, files: Set[str]) -> None:
    """Compare the names of a checkpoint's files with the manifest's list.

    Raises:
        DamagedCheckpoint: a listed file is missing, or there is one that is not listed.
    """
    there = files - {MANIFEST}
    listed = {entry.name for entry in manifest.files}
    for name in sorted(listed - there):
        raise DamagedCheckpoint(f"{name} is missing", file=name)
    for name in sorted(there - listed):
        raise DamagedCheckpoint(f"{name} is not listed in {MANIFEST}", file=name)


def _self_hash(record: dict[str, Any]) -> str:
    rest = {key: value for key, value in record.items() if key != "self_hash"}
    return xxhash.xxh3_128_hexdigest(dump_canonical(rest))
