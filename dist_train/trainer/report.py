"""The records of metrics.jsonl: of a training step, of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dist_train.rundir.remaining import Remaining
from dist_train.trainer.pace import Lap
from dist_train.trainer.position import Extent
from dist_train.trainer.tally import Means


@dataclass(frozen=True)
class Stretch:
    """The training since the last record, on this rank.

    Args:
        lap: its speed.
        whole: the attempt's so far.
        own_s: seconds per step that this rank worked by itself: data and forward passes.
        memory: bytes that it holds.
        wall_s: seconds since training began in this attempt, everything included.
    """

    lap: Lap
    whole: Lap
    own_s: float
    memory: int
    wall_s: float

    @property
    def of_rank(self) -> tuple[float, float]:
        """What rank 0 needs of each rank."""
        return self.own_s, float(self.memory)


class Reporter:
    """Puts records together."""

    def __init__(self, extent: Extent) -> None:
        self._extent = extent
        self._remaining = Remaining()

    def train(self, step: int, means: Means, learning_rate: float, stretch: Stretch) -> dict[str, Any]:
        """The record of a training step."""
        self._remaining.see(step, stretch.wall_s)
        lap, whole = stretch.lap, stretch.whole
        return {
            **self._figures("train", step, means, learning_rate),
            "samples_per_s": lap.samples_per_s,
            "data_wait": lap.data_wait,
            "step_s": lap.step_s,
            "data_s": lap.data_s,
            "compute_s": lap.compute_s,
            "step_s_mean": whole.step_s,
            "data_s_mean": whole.data_s,
            "compute_s_mean": whole.compute_s,
            "eta_s": self._remaining.seconds(self._extent.total_steps),
            **of_ranks(means.of_ranks),
        }

    def evaluation(self, step: int, means: Means, learning_rate: float) -> dict[str, Any]:
        """The record of an evaluation."""
        return self._figures("eval", step, means, learning_rate)

    def _figures(self, kind: str, step: int, means: Means, learning_rate: float) -> dict[str, Any]:
        return {
            "kind": kind,
            "step": step,
            "total_steps": self._extent.total_steps,
            "epoch": self._extent.epoch_of(step),
            "epochs": self._extent.epochs,
            "samples": self._extent.at(step).samples_total,
            "loss": means.loss,
            "lr": learning_rate,
            "metrics": means.metrics,
        }


def of_ranks(ranks: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Who holds most memory, and who makes the others wait, from (own seconds, bytes) of each rank."""
    if not ranks:
        return {}
    held = [int(memory) for _, memory in ranks]
    found: dict[str, Any] = {"memory_bytes": max(held), "memory_rank": held.index(max(held))}
    if len(ranks) == 1:
        return found
    own = [seconds for seconds, _ in ranks]
    slowest = own.index(max(own))
    others = fmean(seconds for rank, seconds in enumerate(own) if rank != slowest)
    return {**found, "slowest_rank": slowest, "slowest_s": own[slowest], "others_s": others}
