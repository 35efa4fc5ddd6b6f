"""The records of metrics.jsonl: of a training step, of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dist_train.rundir.eta import Eta
from dist_train.trainer.records.metric_sums import Means
from dist_train.trainer.records.throughput import Interval
from dist_train.trainer.training_position import Horizon


@dataclass(frozen=True)
class RankInterval:
    """The training since the last record, on this rank.

    Args:
        recent: its speed.
        whole: the speed of the attempt so far.
        own_s: seconds per step that this rank worked by itself: data and forward passes.
        memory: bytes that it holds.
        wall_s: seconds since training began in this attempt, everything included.
    """

    recent: Interval
    whole: Interval
    own_s: float
    memory: int
    wall_s: float

    @property
    def of_rank(self) -> tuple[float, float]:
        """What rank 0 needs of each rank."""
        return self.own_s, float(self.memory)


_LOSS_SCALE = ("loss_scale", "overflow_steps")
# A record of more ranks would be longer than all the rest of it.
MOST_RANK_LOSSES = 64


class Reporter:
    """Makes records from figures and the step's position."""

    def __init__(self, horizon: Horizon) -> None:
        self._horizon = horizon
        self._remaining = Eta()

    def train(
        self,
        step: int,
        means: Means,
        learning_rate: float,
        interval: RankInterval,
        loss_scale: tuple[float, int] | None = None,
        gradient_number: float | None = None,
    ) -> dict[str, Any]:
        """The record of a training step; in fp16 with the scale and the updates that it has left out.

        Args:
            gradient_number: of all gradients of the step, to be compared with another run's.
        """
        scale = {} if loss_scale is None else dict(zip(_LOSS_SCALE, loss_scale, strict=True))
        self._remaining.see(step, interval.wall_s)
        recent, whole = interval.recent, interval.whole
        return {
            **self._figures("train", step, means, learning_rate),
            "samples_per_s": recent.samples_per_s,
            "data_wait": recent.data_wait,
            "step_s": recent.step_s,
            "data_s": recent.data_s,
            "compute_s": recent.compute_s,
            "step_s_mean": whole.step_s,
            "data_s_mean": whole.data_s,
            "compute_s_mean": whole.compute_s,
            "eta_s": self._remaining.seconds(self._horizon.total_steps),
            **scale,
            **({} if gradient_number is None else {"gradient_number": gradient_number}),
            **of_ranks(means.of_ranks),
            **losses_of_ranks(means.of_ranks),
        }

    def evaluation(self, step: int, means: Means, learning_rate: float) -> dict[str, Any]:
        """The record of an evaluation."""
        return self._figures("eval", step, means, learning_rate)

    def _figures(self, kind: str, step: int, means: Means, learning_rate: float) -> dict[str, Any]:
        return {
            "kind": kind,
            "step": step,
            "total_steps": self._horizon.total_steps,
            "epoch": self._horizon.epoch_of(step),
            "epochs": self._horizon.epochs,
            "samples": self._horizon.at(step).samples_total,
            "loss": means.loss,
            "lr": learning_rate,
            # A copy: a sink may change its record, and callbacks get these figures, too.
            "metrics": dict(means.metrics),
        }


def losses_of_ranks(ranks: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The sum of each rank's own losses, from (own seconds, bytes, loss) of each; none of very many ranks."""
    if not 1 < len(ranks) <= MOST_RANK_LOSSES or len(ranks[0]) < 3:
        return {}
    return {"rank_losses": [loss for _, _, loss, *_ in ranks]}


def of_ranks(ranks: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The rank with the most memory, and the slowest one, from (own seconds, bytes) of each rank."""
    if not ranks:
        return {}
    held = [int(memory) for _, memory, *_ in ranks]
    found: dict[str, Any] = {"memory_bytes": max(held), "memory_rank": held.index(max(held))}
    if len(ranks) == 1:
        return found
    own = [seconds for seconds, *_ in ranks]
    slowest = own.index(max(own))
    others = fmean(seconds for rank, seconds in enumerate(own) if rank != slowest)
    return {**found, "slowest_rank": slowest, "slowest_s": own[slowest], "others_s": others}
