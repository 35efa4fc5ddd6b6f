"""The manifest, version 2: a checkpoint exists if and only if this file is there and its hash holds."""

from __future__ import annotations

import json
import re
from collections.abc import Set
from typing import Annotated, Any, Literal

import xxhash
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PlainValidator,
)

from dist_train.checkpoint.format.blocks import BLOCK_BYTES
from dist_train.checkpoint.format.canonical_json import dump_canonical, load_canonical
from dist_train.checkpoint.format.checkpoint_errors import DamagedCheckpoint, UnsupportedCheckpoint
from dist_train.checkpoint.format.layout import MANIFEST, blocks_name
from dist_train.checkpoint.format.tensor_entries import (
    PLAIN_NAME,
    TensorEntry,
    as_object,
    as_records,
    from_records,
    from_records_v1,
)
from dist_train.jobs.frozen_imports import without_collector

FORMAT: Literal["dist-train-checkpoint"] = "dist-train-checkpoint"
VERSION: Literal[2] = 2
READ_VERSIONS = (1, 2)
DATA_KEYS = ("n", "fingerprint", "seed", "dataset_id", "permutation_version", "batch_size")

_SELF_HASH = "self_hash"
_SELF_HASH_ENTRY = re.compile(rb',"self_hash":"([0-9a-f]{32})",')

Count = Annotated[int, Field(ge=0)]
Hash = Annotated[str, Field(pattern=r"\A[0-9a-f]{32}\z")]
FileName = Annotated[str, Field(pattern=PLAIN_NAME)]
# Many: pydantic would take most of the time of a save of small tensors for them. What stands in the file is
# made by as_records and read by from_records.
Tensors = Annotated[
    dict[str, TensorEntry],
    PlainValidator(lambda value: value),
    PlainSerializer(lambda entries: {key: as_object(entry) for key, entry in entries.items()}),
]
# Names and sizes of the dimensions of the mesh, the slowest first.
Mesh = Annotated[
    tuple[tuple[str, Annotated[int, Field(ge=1)]], ...],
    BeforeValidator(lambda value: tuple(tuple(each) for each in value) if isinstance(value, list) else value),
]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class FileEntry(_Record):
    """One file beside the manifest.

    Args:
        xxh3_128: its block hashes; empty where they stand in a file of their own.
        blocks_xxh3: the hash of this file; else empty.
    """

    name: FileName
    bytes: Count
    block_bytes: Annotated[int, Field(gt=0)] = BLOCK_BYTES
    xxh3_128: list[Hash]
    blocks_xxh3: Annotated[str, Field(pattern=r"\A([0-9a-f]{32})?\z")] = ""


class Manifest(_Record):
    """The record of a checkpoint: everything that a reader must know before it reads any data.

    Args:
        version: of what was read; written is version 2.
        mesh: names and sizes of its dimensions, the slowest first; of version 1, one of all ranks.
        data_size: number of shares that the data was split into; of version 1, of ranks.
    """

    format: Literal["dist-train-checkpoint"] = FORMAT
    version: Literal[1, 2] = VERSION
    run_id: str
    attempt: Count
    step: Count
    epoch: Count
    samples_in_epoch: Count
    samples_total: Count
    world_size: Annotated[int, Field(ge=1)]
    mesh: Mesh
    data_size: Annotated[int, Field(ge=1)]
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
        record = self._record()
        # The keys are sorted, so the hash has its place between these two parts.
        before = dump_canonical({key: value for key, value in record.items() if key < _SELF_HASH})[:-1]
        after = dump_canonical({key: value for key, value in record.items() if key > _SELF_HASH})[1:]
        digest = xxhash.xxh3_128_hexdigest(before + b"," + after)
        entry = f',"{_SELF_HASH}":"{digest}",'.encode()
        return self.model_copy(update={_SELF_HASH: digest}), before + entry + after

    def to_bytes(self) -> bytes:
        """Return canonical JSON, as it is stored."""
        return dump_canonical({**self._record(), _SELF_HASH: self.self_hash})

    def _record(self) -> dict[str, Any]:
        record = self.model_dump(exclude={_SELF_HASH, "tensors"})
        layouts, tensors = as_records(self.tensors, [file.name for file in self.files])
        return {**record, "version": VERSION, "layouts": layouts, "tensors": tensors}


@without_collector()
def parse_manifest(raw: bytes) -> Manifest:
    """Parse a manifest and check that every byte of it is as it was written.

    Raises:
        DamagedCheckpoint: not canonical, or the hash over everything but self_hash differs.
        UnsupportedCheckpoint: whole, but of another format or a later version.
    """
    record = _whole_record(raw)
    version = record.get("version")
    if record.get("format") != FORMAT or version not in READ_VERSIONS:
        raise UnsupportedCheckpoint(
            f"format {record.get('format')!r} version {version!r}; "
            f"this dist-train reads {FORMAT!r} versions {', '.join(map(str, READ_VERSIONS))}",
            hint="read it with the dist-train version that wrote it, or a later one",
        )
    try:
        return Manifest.model_validate(_in_memory_v1(record) if version == 1 else _in_memory(record))
    except (ValueError, KeyError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise DamagedCheckpoint(
            f"{MANIFEST} is not a version-{version} manifest: {error}", file=MANIFEST
        ) from error


def _in_memory(record: dict[str, Any]) -> dict[str, Any]:
    files = [file["name"] for file in record["files"]]
    rest = {key: value for key, value in record.items() if key != "layouts"}
    return {**rest, "tensors": from_records(record["layouts"], record["tensors"], files)}


def _in_memory_v1(record: dict[str, Any]) -> dict[str, Any]:
    """What version 2 says besides follows: each rank had the whole model, and data of its own."""
    ranks = record["world_size"]
    added = {"mesh": [["replicate", ranks]], "data_size": ranks}
    if unknown := sorted(added.keys() & record.keys()):
        raise ValueError(f"version 1 has no {', '.join(unknown)}")
    return {**record, **added, "tensors": from_records_v1(record["tensors"])}


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


def names_of(entry: FileEntry) -> list[str]:
    """Return the names of the files that an entry stands for: its own, and that of its block hashes."""
    return [entry.name, blocks_name(entry.name)] if entry.blocks_xxh3 else [entry.name]


def copies_of_parts(manifest: Manifest) -> int | None:
    """Return how many ranks held each part of a sharded tensor; None where no tensor was sharded.

    With one, there was no copy with which it could have been compared at the save. A tensor that one stage of
    a pipeline holds counts as sharded.
    """
    # By files, of which each rank has one: it may hold several boxes of a tensor.
    parts = max((len({shard.file for shard in e.shards}) for e in manifest.tensors.values()), default=1)
    parts *= dict(manifest.mesh).get("stage", 1)
    return manifest.world_size // parts if parts > 1 else None


def missing(name: str) -> DamagedCheckpoint:
    """Make the error for a file that is not there."""
    return DamagedCheckpoint(f"{name} is missing", file=name)


def listed_files(manifest: Manifest) -> set[str]:
    """The names of a checkpoint's files, without the manifest's own."""
    return {name for entry in manifest.files for name in names_of(entry)}


def check_listing(manifest: Manifest, files: Set[str]) -> None:
    """Compare the names of a checkpoint's files with the manifest's list.

    Raises:
        DamagedCheckpoint: a listed file is missing, or there is one that is not listed.
    """
    there = files - {MANIFEST}
    listed = listed_files(manifest)
    for name in sorted(listed - there):
        raise missing(name)
    for name in sorted(there - listed):
        raise DamagedCheckpoint(f"{name} is not listed in {MANIFEST}", file=name)
