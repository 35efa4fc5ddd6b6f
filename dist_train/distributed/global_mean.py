"""The mean over all samples of all ranks, from each rank's sums or per-sample values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import torch

from dist_train.distributed.control_group import JsonValue
from dist_train.distributed.keyed_exchange import KeyedExchange
from dist_train.errors import ConfigError

Number = float | int | torch.Tensor


def global_mean(
    exchange: KeyedExchange | None,
    values: Number | Mapping[str, Number],
    count: Number | None,
    counts: bool = True,
) -> float | dict[str, float]:
    """`Run.mean`, which has the arguments' meaning; without `counts` another rank has the same samples."""
    named = dict(values) if isinstance(values, Mapping) else {"": values}
    pairs = [(name, *_sum_and_count(value, count)) for name, value in named.items()]
    parts: list[JsonValue] = [[name, *(own if counts else (0.0, 0.0))] for name, *own in pairs]
    answer = _means([parts]) if exchange is None else exchange.exchange("mean", parts, _means, "run.mean")
    means = dict(zip(named, cast("list[float]", answer), strict=True))
    return means if isinstance(values, Mapping) else means[""]


def _sum_and_count(value: Number, count: Number | None) -> tuple[float, float]:
    tensor = value.detach() if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=torch.float64)
    if count is None:
        if not tensor.ndim:
            raise ConfigError(
                f"run.mean({float(tensor):g}) without a count",
                cause="one number says nothing about how many samples it stands for",
                hint="run.mean(loss_sum, count=samples), or give a tensor with one value per sample",
            )
        return float(tensor.double().sum()), float(tensor.numel())
    if tensor.numel() != 1:
        raise ConfigError(
            f"run.mean got {tensor.numel()} values of shape {tuple(tensor.shape)} and a count",
            cause="with a count the value is one sum over this rank's samples",
            hint="run.mean(values.sum(), count=samples), or run.mean(values) for one value per sample",
        )
    number = float(count)
    if not (number >= 0 and math.isfinite(number)):
        raise ConfigError(f"run.mean: count={number:g} is not a number from 0 up")
    # Of no sample there is no sum: what a loss gives for an empty batch is often nan.
    return (float(tensor), number) if number else (0.0, 0.0)


def _means(ranks: list[JsonValue]) -> JsonValue:
    """The mean of each name; the sums are exact, so that their order does not matter."""
    rows = cast("list[list[list[Any]]]", ranks)
    names = [[name for name, _, _ in row] for row in rows]
    for rank, other in enumerate(names):
        if other != names[0]:
            raise ConfigError(
                f"run.mean got {other} on rank {rank} and {names[0]} on rank 0",
                hint="give the same names in the same order on all ranks, with count 0 where there is none",
            )
    means: list[JsonValue] = []
    for column, name in enumerate(names[0]):
        total = _exact_sum([row[column][1] for row in rows])
        count = math.fsum(row[column][2] for row in rows)
        if not count:
            raise ConfigError(f"run.mean: no rank has a sample{f' of {name!r}' if name else ''}")
        means.append(total / count)
    return means


def _exact_sum(numbers: list[float]) -> float:
    # fsum refuses inf - inf, which is nan.
    return math.fsum(numbers) if all(map(math.isfinite, numbers)) else sum(numbers)
