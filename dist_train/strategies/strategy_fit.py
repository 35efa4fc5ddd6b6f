"""Check a strategy, its options and the ranks against each other before any rank is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dist_train.distributed.place import Place
from dist_train.errors import ConfigError
from dist_train.strategies.base import (
    Strategy,
    StrategyOptions,
    is_for_one_process,
    places_of,
    refuse_device,
    refuse_micro_batches,
    works_alone,
)
from dist_train.strategies.prepare import check_options, load_strategy


@dataclass(frozen=True)
class FittedStrategy:
    """A strategy that a job of `world_size` ranks can use.

    Args:
        strategy: `single` in place of one for several ranks where there is one.
        options: its options, checked.
        place: rank 0's; those of all ranks fit together.
    """

    strategy: Strategy
    options: StrategyOptions
    place: Place


def fit_strategy(
    name: str,
    options: Mapping[str, Any],
    world_size: int,
    device: str | None = None,
    accumulate: int | None = None,
) -> FittedStrategy:
    """Choose as `prepare` and the trainer do, without a process group.

    Args:
        name: as the registry knows it.
        options: unchecked.
        world_size: ranks of the whole job.
        device: `cpu` or `cuda`; None: not known yet.
        accumulate: micro-batches of an optimizer step; None: not known yet.

    Raises:
        ConfigError: an unknown name or option, options that contradict each other or the device, a strategy
            for one process on several ranks, ranks that do not fit the mesh, or fewer micro-batches than
            the strategy needs.
    """
    strategy = load_strategy(name)
    checked = check_options(strategy, dict(options))
    alone = is_for_one_process(strategy)
    if world_size > 1 and alone:
        raise ConfigError(
            f"strategy {name!r} cannot train on {world_size} ranks",
            cause="it is for one process",
            hint="strategy ddp trains on several; or --nodes 1 --gpus-per-node 1",
        )
    if device is not None:
        refuse_device(strategy, checked, device)
    if world_size == 1 and not works_alone(strategy):
        strategy = load_strategy("single")
        checked = strategy.Options()
    if accumulate is not None:
        refuse_micro_batches(strategy, checked, world_size, accumulate)
    return FittedStrategy(strategy, checked, places_of(strategy, checked, world_size)[0])
