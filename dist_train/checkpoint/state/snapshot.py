"""Copy the collected state to host memory once, and take all its hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dist_train.checkpoint.format.canonical_json import dump_canonical
from dist_train.checkpoint.format.hashing import state_hash, weights_hash
from dist_train.checkpoint.format.manifest import Manifest
from dist_train.checkpoint.format.tensor_bytes import host
from dist_train.checkpoint.state.collect import CollectedState
from dist_train.checkpoint.state.data_position import DataPosition
from dist_train.checkpoint.state.finite_tensors import not_finite
from dist_train.rundir.records import now_rfc3339

if TYPE_CHECKING:
    from dist_train.distributed.control_group import JsonValue


@dataclass(frozen=True)
class SaveContext:
    """What goes into the manifest besides the state."""

    run_id: str
    attempt: int
    world_size: int
    strategy: str
    config_xxh3: str
    determinism: Mapping[str, JsonValue]
    seed: int | None


@dataclass(frozen=True)
class Snapshot:
    """Everything that will be written, in memory.

    Args:
        manifest: complete but for tensors and files, and not sealed.
        tensors: manifest key -> tensor in host memory.
        state_json: the bytes of state.json.
        non_finite: manifest keys of weights that are not finite.
    """

    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    state_json: bytes
    non_finite: tuple[str, ...] = ()


def take_snapshot(
    step: int,
    collected: CollectedState,
    per_rank: Mapping[str, torch.Tensor],
    context: SaveContext,
    position: DataPosition,
    score: float | None,
) -> Snapshot:
    """Copy everything to host memory once (CPU tensors are not copied again) and hash it."""
    # state.json must be equal for equal states: it holds no time, attempt or host.
    reserved: dict[str, JsonValue] = {
        "score": _finite(score),
        "seed": position.data.get("seed", context.seed),
    }
    tensors = {key: host(tensor) for key, tensor in (collected.tensors | dict(per_rank)).items()}
    non_finite = not_finite(collected, tensors)
    if non_finite:  # without the word where it is not needed: state.json is hashed
        reserved["non_finite"] = [*non_finite]
    state_json = dump_canonical({"entries": collected.entries, "reserved": reserved})
    weights = {name: tensors[key] for name, key in collected.weights.items()}
    manifest = Manifest(
        run_id=context.run_id,
        attempt=context.attempt,
        step=step,
        epoch=position.epoch,
        samples_in_epoch=position.samples_in_epoch,
        samples_total=position.samples_total,
        world_size=context.world_size,
        strategy=context.strategy,
        created_at=now_rfc3339(),
        tensors={},
        aliases=collected.aliases,
        files=[],
        data=position.data,
        config_xxh3=context.config_xxh3,
        determinism=dict(context.determinism),
        weights_hash=weights_hash(weights),
        state_hash=state_hash(tensors, state_json),
    )
    return Snapshot(manifest, tensors, state_json, non_finite)


def _finite(score: float | None) -> float | None:
    if score is None:
        return None
    value = float(score)
    # A run that has diverged must still be able to save; such a score is never the best.
    return value if abs(value) != float("inf") and value == value else None
