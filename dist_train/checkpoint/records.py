"""What saving and loading give back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Committed:
    """A checkpoint that will outlive this process."""

    step: int
    path: Path
    state_hash: str
    weights_hash: str
    self_hash: str
    seconds: float


@dataclass(frozen=True)
class Restored:
    """Where a run goes on from; `rng_restored` is False where streams were derived anew."""

    step: int
    epoch: int
    samples_in_epoch: int
    samples_total: int
    world_size: int
    path: Path
    rng_restored: bool
