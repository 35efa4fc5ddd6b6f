"""From what the ranks hold to what will be written: one copy in host memory, all its hashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dist_train.checkpoint.canonical import dump_canonical
from dist_train.checkpoint.hashing import state_hash, weights_hash
from dist_train.checkpoint.manifest import Manifest
from dist_train.checkpoint.memory import host
from dist_train.checkpoint.position import DataPosition
from dist_train.checkpoint.state import Collected
from dist_train.rundir.records import now_rfc3339

if TYPE_CHECKING:
    from dist_train.distributed.control import JsonValue


@dataclass(frozen=True)
class Facts:
    """What the manager knows beside the state."""

    run_id: str
    attempt: int
    world_size: int
    strategy: str
    config_xxh3: str
    determinism: Mapping[str, JsonValue]
    seed: int | None


@dataclass(frozen=True)
class Draft:
    """All that will be written, in memory.

    Args:
        manifest: complete but for tensors and files, and not sealed.
        tensors: manifest key -> tensor in host memory.
        state_json: the bytes of state.json.
    """

    manifest: Manifest
    tensors: Mapping[str, torch.Tensor]
    state_json: bytes


def make_draft(
    step: int,
    found: Collected,
    per_rank: Mapping[str, torch.Tensor],
    facts: Facts,
    at: DataPosition,
    score: float | None,
) -> Draft:
    """Bring everything to host memory once (CPU tensors are not copied) and hash it."""
    # state.json must be equal for equal states: no time, attempt or host belongs into it.
    reserved: dict[str, JsonValue] = {"score": _finite(score), "seed": at.data.get("seed", facts.seed)}
    state_json = dump_canonical({"entries": found.entries, "reserved": reserved})
    tensors = {key: host(tensor) for key, tensor in (found.tensors | dict(per_rank)).items()}
    weights = {name: tensors[key] for name, key in found.weights.items()}
    manifest = Manifest(
        run_id=facts.run_id,
        attempt=facts.attempt,
        step=step,
        epoch=at.epoch,
        samples_in_epoch=at.samples_in_epoch,
        samples_total=at.samples_total,
        world_size=facts.world_size,
        strategy=facts.strategy,
        created_at=now_rfc3339(),
        tensors={},
        aliases=found.aliases,
        files=[],
        data=at.data,
        config_xxh3=facts.config_xxh3,
        determinism=dict(facts.determinism),
        weights_hash=weights_hash(weights),
        state_hash=state_hash(tensors, state_json),
    )
    return Draft(manifest, tensors, state_json)


def _finite(score: float | None) -> float | None:
    if score is None:
        return None
    value = float(score)
    # A run that has diverged must still be able to save; such a score is never the best.
    return value if abs(value) != float("inf") and value == value else None
