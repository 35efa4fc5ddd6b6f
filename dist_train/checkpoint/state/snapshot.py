"""Copy the collected state to host memory once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from dist_train.checkpoint.format.byte_views import byte_views
from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.hashing import Digested, state_hash_of, weights_hash_of
from dist_train.checkpoint.format.manifest import FileEntry, Manifest
from dist_train.checkpoint.format.tensor_bytes import host
from dist_train.checkpoint.format.tensor_entries import TensorEntry
from dist_train.checkpoint.state.collect import CollectedState
from dist_train.checkpoint.state.data_position import DataPosition
from dist_train.checkpoint.state.finite_tensors import not_finite
from dist_train.jobs.frozen_imports import without_collector
from dist_train.rundir.records import now_rfc3339

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue


@dataclass(frozen=True)
class SaveContext:
    """What goes into the manifest besides the state."""

    run_id: str
    attempt: int
    world_size: int
    mesh: tuple[tuple[str, int], ...]
    data_size: int
    strategy: str
    config_xxh3: str
    determinism: Mapping[str, JsonValue]
    seed: int | None


@dataclass(frozen=True)
class ShardFacts:
    """What rank 0 must know of tensors that are spread over ranks.

    Args:
        digests: manifest key -> XXH3-128 of the whole tensor, of weights.
        non_finite: manifest keys of those that are not finite.
    """

    digests: Mapping[str, bytes] = field(default_factory=dict)
    non_finite: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """Everything that will be written, in memory.

    Args:
        step: optimizer steps done.
        attempt: that writes it.
        tensors: manifest key -> tensor in host memory.
        views: manifest key -> the bytes of this tensor.
        digests: manifest key -> digest of these bytes, where it is known.
        state_json: the bytes of state.json.
        reserved: the part of it that save() stores for its own use.
        weights: the names of weights_hash -> manifest key.
        manifest: gives the manifest, not sealed, for the entries of all tensors and files, the digests of
            all tensors, and weights_hash and state_hash.
        non_finite: manifest keys of weights that are not finite.
        whole_digests: manifest key -> XXH3-128 of the whole tensor, of weights that are spread over ranks.
    """

    step: int
    attempt: int
    tensors: Mapping[str, torch.Tensor]
    views: Mapping[str, memoryview]
    digests: Mapping[str, bytes]
    state_json: bytes
    reserved: dict[str, JsonValue]
    weights: Mapping[str, str]
    manifest: Callable[[dict[str, TensorEntry], list[FileEntry], Mapping[str, Digested]], Manifest]
    non_finite: tuple[str, ...] = ()
    whole_digests: Mapping[str, bytes] = field(default_factory=dict)


@without_collector()
def take_snapshot(
    step: int,
    collected: CollectedState,
    per_rank: Mapping[str, torch.Tensor],
    context: SaveContext,
    position: DataPosition,
    score: float | None,
    digests: Mapping[str, bytes],
    shards: ShardFacts,
) -> Snapshot:
    """Copy everything of rank 0 to host memory once (CPU tensors are not copied again)."""
    # state.json must be equal for equal states: it holds no time, attempt or host.
    reserved: dict[str, JsonValue] = {
        "score": _finite(score),
        "seed": position.data.get("seed", context.seed),
    }
    tensors = {key: host(tensor) for key, tensor in (collected.tensors | dict(per_rank)).items()}
    views = byte_views(tensors)
    non_finite = not_finite(collected, tensors) or shards.non_finite
    if non_finite:  # without the word where it is not needed: state.json is hashed
        reserved["non_finite"] = [*non_finite]
    state_json = dump_canonical({"entries": collected.entries, "reserved": reserved})

    def manifest(
        placed: dict[str, TensorEntry], files: list[FileEntry], hashed: Mapping[str, Digested]
    ) -> Manifest:
        return Manifest(
            run_id=context.run_id,
            attempt=context.attempt,
            step=step,
            epoch=position.epoch,
            samples_in_epoch=position.samples_in_epoch,
            samples_total=position.samples_total,
            world_size=context.world_size,
            mesh=context.mesh,
            data_size=context.data_size,
            strategy=context.strategy,
            created_at=now_rfc3339(),
            tensors=placed,
            aliases=collected.aliases,
            files=files,
            data=position.data,
            config_xxh3=context.config_xxh3,
            determinism=dict(context.determinism),
            weights_hash=weights_hash_of({name: hashed[key] for name, key in collected.weights.items()}),
            state_hash=state_hash_of(hashed, state_json),
        )

    return Snapshot(
        step=step,
        attempt=context.attempt,
        tensors=tensors,
        views=views,
        digests=digests,
        state_json=state_json,
        reserved=reserved,
        weights=collected.weights,
        manifest=manifest,
        non_finite=non_finite,
        whole_digests=shards.digests,
    )


def _finite(score: float | None) -> float | None:
    if score is None:
        return None
    value = float(score)
    # A run that has diverged must still be able to save; such a score is never the best.
    return value if abs(value) != float("inf") and value == value else None
