"""Sums and counts of a step or of an evaluation: kept on the device, added up in float64 over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dist_train.distributed.control_group import Control, Deferred
from dist_train.errors import ConfigError
from dist_train.trainer.task import LossOutput


@dataclass(frozen=True)
class Means:
    """Loss per unit and each metric's sum / count, over all ranks; and numbers of each rank beside them."""

    loss: float
    metrics: dict[str, float]
    of_ranks: tuple[tuple[float, ...], ...] = ()

    @property
    def figures(self) -> dict[str, float]:
        """`loss` and every metric."""
        return {"loss": self.loss, **self.metrics}


class MetricSums:
    """Adds up LossOutputs of this rank."""

    def __init__(self) -> None:
        self._loss: Tensor | float = 0.0
        self._units = 0
        self._metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {}

    def add(self, output: LossOutput, units: int, counts: bool) -> None:
        """Add one micro-batch; with `counts` False (its sample has weight 0) only the metrics' names."""
        for name in output.metrics:
            self._metrics.setdefault(name, (0.0, 0.0))
        if not counts:
            return
        self._loss = self._loss + _float64(output.total)
        self._units += units
        for name, (top, bottom) in output.metrics.items():
            total, count = self._metrics[name]
            self._metrics[name] = (total + _float64(top), count + _float64(bottom))

    @property
    def loss(self) -> float:
        """The sum of this rank's losses; waits for the device."""
        return float(self._loss)

    @property
    def names(self) -> list[str]:
        """Names of the metrics, sorted."""
        return sorted(self._metrics)

    def parts(self, names: list[str]) -> list[float]:
        """Loss, units, then sum and count of each of these metrics; waits for the device."""
        pairs = [self._metrics.get(name, (0.0, 0.0)) for name in names]
        return [float(part) for part in (self._loss, self._units, *(part for pair in pairs for part in pair))]


class Reducer:
    """Adds sums up over the ranks: the first call agrees on the metrics' names, then one all-reduce each.

    Args:
        control: all ranks.
        counts: this rank's sums are added up; another one of the same data says False.
    """

    def __init__(self, control: Control, counts: bool = True) -> None:
        self._control = control
        self._counts = counts
        self._names: list[str] | None = None

    def means(self, metric_sums: MetricSums) -> Means:
        """Over all ranks, equal on all of them. Collective.

        Raises:
            ConfigError: on every rank, when a task's metrics differ between ranks or steps.
        """
        return self.begin(metric_sums).get()

    def begin(self, metric_sums: MetricSums, of_rank: Sequence[float] = ()) -> Deferred[Means]:
        """Begin `means`: this half is collective, and the result's `get` waits for the sums.

        Args:
            of_rank: numbers of this rank (equally many on all) that are gathered, not added up.
        """
        if self._names is None:
            self._names = self._agree_on_names(metric_sums.names)
        names = self._names
        odd = self._counts and metric_sums.names != names
        own = metric_sums.parts(names) if self._counts else [0.0] * (2 + 2 * len(names))
        # Each rank fills its own places and leaves the others' at zero: their sum is the list of all.
        before = len(of_rank) * self._control.rank
        after = len(of_rank) * self._control.world_size - before - len(of_rank)
        places = [*[0.0] * before, *of_rank, *[0.0] * after]

        def means(sums: list[float]) -> Means:
            others, loss, units, *rest = sums
            if others:
                raise _other_names(f"{int(others)} ranks have others than {names}")
            figures, gathered = rest[: 2 * len(names)], rest[2 * len(names) :]
            pairs = zip(names, figures[::2], figures[1::2], strict=True)
            metrics = {name: _ratio(top, bottom) for name, top, bottom in pairs}
            size = max(1, len(of_rank))
            return Means(
                _ratio(loss, units),
                metrics,
                tuple(tuple(gathered[i : i + size]) for i in range(0, len(gathered), size)),
            )

        return self._control.sum_later([float(odd), *own, *places]).then(means)

    def _agree_on_names(self, own: list[str]) -> list[str]:
        everywhere = self._control.all_gather([*own] if self._counts else None)
        given = [names for names in everywhere if isinstance(names, list)]
        if any(names != given[0] for names in given):
            raise _other_names(f"names on each rank: {everywhere}")
        return [str(name) for name in given[0]]


def _float64(value: Tensor | float) -> Tensor | float:
    return value.detach().to(torch.float64) if isinstance(value, Tensor) else float(value)


def _ratio(total: float, count: float) -> float:
    return total / count if count else float("nan")


def _other_names(cause: str) -> ConfigError:
    return ConfigError(
        "the task's metrics differ between ranks or steps",
        cause=cause,
        hint="give the same metrics for every batch, with count 0 where one does not apply",
    )
