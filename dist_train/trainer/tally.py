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
    """Adds up LossOutputs of this rank."""

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

    @property
    def names(self) -> list[str]:
        """Of the metrics, sorted."""
        return sorted(self._metrics)

    def parts(self, names: list[str]) -> list[float]:
        """Loss, units, then sum and count of each of these metrics; waits for the device."""
        pairs = [self._metrics.get(name, (0.0, 0.0)) for name in names]
        return [float(part) for part in (self._loss, self._units, *(part for pair in pairs for part in pair))]


class Reducer:
    """Adds tallies up over the ranks: the first one agrees on the metrics' names, then one sum each."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._names: list[str] | None = None

    def means(self, tally: Tally) -> Means:
        """Over all ranks, equal on all of them. Collective.

        Raises:
            ConfigError: on every rank, when a task's metrics differ between ranks or steps.
        """
        if self._names is None:
            everywhere = self._control.all_gather([*tally.names])
            if any(other != everywhere[0] for other in everywhere):
                raise _other_names(f"names on each rank: {everywhere}")
            self._names = tally.names
        others = 0.0 if tally.names == self._names else 1.0
        odd, loss, units, *rest = self._control.sum([others, *tally.parts(self._names)])
        if odd:
            raise _other_names(f"{int(odd)} ranks have others than {self._names}")
        pairs = zip(self._names, rest[::2], rest[1::2], strict=True)
        return Means(_ratio(loss, units), {name: _ratio(top, bottom) for name, top, bottom in pairs})


def _float64(value: Tensor | float) -> Tensor | float:
    return value.detach().to(torch.float64) if isinstance(value, Tensor) else float(value)


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")


def _other_names(cause: str) -> ConfigError:
    return ConfigError(
        "the task's metrics differ between ranks or steps",
        cause=cause,
        mend="give the same metrics for every batch, with count 0 where one does not apply",
    )
