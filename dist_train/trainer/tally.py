"""Sums and counts of a step or of an evaluation: kept on the device, added up in float64 over ranks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dist_train.distributed.control import Control
from dist_train.errors import ConfigError
from dist_train.trainer.task import LossOutput


@dataclass(frozen=True)
class Means:
    """Loss per unit and each metric's sum / count, over all ranks."""

    loss: float
    metrics: dict[str, float]


class Tally:
    """Adds up LossOutputs of this rank; `means` then adds up the ranks."""

    def __init__(self) -> None:
        self._loss: Tensor | float = 0.0
        self._units = 0
        self._metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, output: LossOutput, units: int, counts: bool) -> None:
        """One micro-batch; with `counts` False (its sample weighs nothing) it only tells metrics' names."""
        for name in output.metrics:
            self._metrics.setdefault(name, (0.0, 0.0))
        if not counts:
            return
        self._loss = self._loss + _float64(output.total)
        self._units += units
        for name, (top, bottom) in output.metrics.items():
            held = self._metrics[name]
            self._metrics[name] = (held[0] + _float64(top), held[1] + _float64(bottom))

    def means(self, control: Control) -> Means:
        """Over all ranks, equal on all of them. Collective."""
        names = sorted(self._metrics)
        _refuse_other_names(names, control)
        parts = [self._loss, self._units, *(part for name in names for part in self._metrics[name])]
        sums = control.sum([float(part) for part in parts])
        pairs = zip(names, sums[2::2], sums[3::2], strict=True)
        return Means(_ratio(sums[0], sums[1]), {name: _ratio(top, bottom) for name, top, bottom in pairs})


def _float64(value: Tensor | float) -> Tensor | float:
    return value.detach().to(torch.float64) if isinstance(value, Tensor) else float(value)


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")


def _refuse_other_names(names: list[str], control: Control) -> None:
    everywhere = control.all_gather([*names])
    if any(other != everywhere[0] for other in everywhere):
        raise ConfigError(
            "the task's metrics differ between ranks",
            cause=f"names on each rank: {everywhere}",
            mend="give the same metrics for every batch, with count 0 where one does not apply",
        )
