"""The manifest, version 1: a checkpoint exists if and only if this file is there and its hash holds."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Annotated, Any, Literal

import xxhash
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
    ValidationError,
)

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, UnsupportedCheckpoint
from dist_train.checkpoint.format.layout import MANIFEST
from dist_train.checkpoint.format.tensor_entries import (
    PLAIN_NAME,
    TensorEntry,
    entries_as_records,
    entries_from_records,
)
from dist_train.jobs.frozen_imports import without_collector

FORMAT: Literal["dist-train-checkpoint"] = "dist-train-checkpoint"
VERSION = 1
DATA_KEYS = ("n", "fingerprint", "seed", "dataset_id", "permutation_version", "batch_size")

_SELF_HASH = "self_hash"
_SELF_HASH_ENTRY = re.compile(rb',"self_hash":"([0-9a-f]{32})",')

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
FileName = Annotated[str, Field(pattern=PLAIN_NAME)]
# Many: pydantic would take most of the time of a save of small tensors for them.
Tensors = Annotated[
    dict[str, TensorEntry], PlainValidator(entries_from_records), PlainSerializer(entries_as_records)
]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


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
    tensors: Tensors
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
        return self.sealed_bytes()[0]

    def sealed_bytes(self) -> tuple[Manifest, bytes]:
        """Return the same manifest with its self_hash, and its canonical JSON, written once for both."""
        record = self.model_dump(exclude={_SELF_HASH})
        # The keys are sorted, so the hash has its place between these two parts.
        before = dump_canonical({key: value for key, value in record.items() if key < _SELF_HASH})[:-1]
        after = dump_canonical({key: value for key, value in record.items() if key > _SELF_HASH})[1:]
        digest = xxhash.xxh3_128_hexdigest(before + b"," + after)
        entry = f',"{_SELF_HASH}":"{digest}",'.encode()
        return self.model_copy(update={_SELF_HASH: digest}), before + entry + after

    def to_bytes(self) -> bytes:
        """Return canonical JSON, as it is stored."""
        return dump_canonical(self.model_dump())


@without_collector()
def parse_manifest(raw: bytes) -> Manifest:
    """Parse a manifest and check that every byte of it is as it was written.

    Raises:
        DamagedCheckpoint: not canonical, or the hash over everything but self_hash differs.
        UnsupportedCheckpoint: whole, but of another format or a later version.
    """
    record = _whole_record(raw)
    if (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise UnsupportedCheckpoint(
            f"format {record.get('format')!r} version {record.get('version')!r}; "
            f"this dist-train reads {FORMAT!r} version {VERSION}",
            hint="read it with the dist-train version that wrote it, or a later one",
        )
    try:
        return Manifest.model_validate(record)
    except ValidationError as error:
        raise DamagedCheckpoint(f"{MANIFEST} is not a version-1 manifest: {error}", file=MANIFEST) from error


def _whole_record(raw: bytes) -> dict[str, Any]:
    digest = _held_hash(raw)
    try:
        record = load_canonical(raw) if digest is None else json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} is not canonical JSON: {error}", file=MANIFEST) from error
    if not isinstance(record, dict) or not (
        (digest and record.get(_SELF_HASH) == digest) or _is_own_hash(record)
    ):
        raise DamagedCheckpoint(f"{MANIFEST} does not match its own hash", file=MANIFEST)
    return record


def _held_hash(raw: bytes) -> str | None:
    """The hash that stands in these bytes, if the rest has it: then they are the bytes that were hashed.

    Also None where it is not found so: a name that a user chose may look like the entry.
    """
    found = _SELF_HASH_ENTRY.findall(raw)
    if len(found) != 1:
        return None
    before, _, after = raw.partition(b',"self_hash":"' + found[0] + b'",')
    digest = xxhash.xxh3_128_hexdigest(before + b"," + after)
    return digest if digest.encode() == found[0] else None


def _is_own_hash(record: dict[str, Any]) -> bool:
    rest = {key: value for key, value in record.items() if key != _SELF_HASH}
    return bool(record.get(_SELF_HASH) == xxhash.xxh3_128_hexdigest(dump_canonical(rest)))


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
