"""What saving and loading return."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Committed:
    """A checkpoint that survives the end of this process and the loss of power.

    Args:
        step: optimizer steps done.
        path: its directory; its name alone where it is not on a file system.
        state_hash: of everything that was saved.
        weights_hash: of the model's weights.
        self_hash: of the manifest.
        seconds: how long the save took.
        location: its path or URL.
        stall_seconds: how long the caller stood still for it: all of `seconds`, but in a save that was
            written in the background.
    """

    step: int
    path: Path
    state_hash: str
    weights_hash: str
    self_hash: str
    seconds: float
    location: str
    stall_seconds: float


@dataclass(frozen=True)
class Restored:
    """Where a run continues.

    Args:
        step: optimizer steps done.
        epoch: whole epochs done.
        samples_in_epoch: samples of this epoch whose step is done.
        samples_total: samples since the start.
        world_size: the number of ranks that saved it.
        path: its directory; its name alone where it is not on a file system.
        rng_restored: False where RNG state was derived again.
        location: its path or URL.
        state_hash: of everything that was saved.
        weights_hash: of the model's weights.
    """

    step: int
    epoch: int
    samples_in_epoch: int
    samples_total: int
    world_size: int
    path: Path
    rng_restored: bool
    location: str
    state_hash: str
    weights_hash: str


@dataclass(frozen=True)
class SaveTimes:
    """The times of one save.

    Args:
        started: when it was called, by time.perf_counter().
        stall: how long the caller stood still; None: until the save ends.
        sums: what the process's clock had counted when the state was copied; None: what it has at the end.
    """

    started: float
    stall: float | None = None
    sums: tuple[float, ...] | None = None

    def stalled(self) -> float:
        """Seconds that the caller stood still, up to now at most."""
        return time.perf_counter() - self.started if self.stall is None else self.stall
