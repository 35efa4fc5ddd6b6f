"""Strategy `fsdp`: parameters, gradients and optimizer state are spread over all ranks."""

from __future__ import annotations

from torch import nn

from dist_train.distributed.place import Place
from dist_train.distributed.run import Run
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.fully_sharded.parameter_sharding import (
    ShardedStrategy,
    ShardingOptions,
    shard_model,
)

# Options that name modules: whether they fit is known from the model alone, before ranks are started.
NEEDS_MODEL = ("units", "unit_parameters")


class FsdpOptions(ShardingOptions):
    """How a model is cut into units, and when their parameters are whole."""


class Fsdp(ShardedStrategy):
    """Torch's fully_shard (FSDP2) over all ranks: each holds one part of every parameter."""

    name = "fsdp"
    Options: type[StrategyOptions] = FsdpOptions

    def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
        """Every rank has data of its own."""
        return Place((("shard", world_size),), rank, world_size)

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        if not isinstance(options, FsdpOptions):
            raise TypeError(f"fsdp takes FsdpOptions, not {type(options).__name__}")
        return shard_model(model, run, options, (("shard", run.world_size),))


STRATEGY = Fsdp()
