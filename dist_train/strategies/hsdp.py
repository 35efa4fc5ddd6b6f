"""Strategy `hsdp`: several copies of the model, each spread over a group of ranks."""

from __future__ import annotations

from pydantic import Field
from torch import nn

from dist_train.distributed.place import Place
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.fully_sharded.parameter_sharding import (
    ShardedStrategy,
    ShardingOptions,
    shard_model,
)

# Options that name modules: whether they fit is known from the model alone, before ranks are started.
NEEDS_MODEL = ("units", "unit_parameters")


class HsdpOptions(ShardingOptions):
    """The sizes of both dimensions of the mesh, and the options of fsdp."""

    replicate: int = Field(2, ge=1, description="copies of the model, usually one for each node or more")
    shard: int | None = Field(
        None, ge=1, description="ranks that hold one copy together; None: as many as there are for each copy"
    )


class Hsdp(ShardedStrategy):
    """Torch's fully_shard (FSDP2) over a mesh of two dimensions: ranks 0 .. shard - 1 hold the first copy."""

    name = "hsdp"
    Options: type[StrategyOptions] = HsdpOptions

    def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
        """Every rank has data of its own."""
        return Place(_mesh(options, world_size), rank, world_size)

    def candidates(self, world_size: int) -> list[dict[str, int]]:
        """The meshes of this size in which both dimensions have several ranks."""
        sizes = [size for size in range(2, world_size // 2 + 1) if world_size % size == 0]
        return [{"replicate": world_size // size, "shard": size} for size in sizes]

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        mesh = _mesh(options, run.world_size)
        assert isinstance(options, HsdpOptions)
        return shard_model(model, run, options, mesh)


def _mesh(options: StrategyOptions, world_size: int) -> tuple[tuple[str, int], ...]:
    if not isinstance(options, HsdpOptions):
        raise TypeError(f"hsdp takes HsdpOptions, not {type(options).__name__}")
    shard = options.shard or world_size // options.replicate
    if options.replicate * shard != world_size:
        wanted = f" x shard {options.shard}" if options.shard else ""
        raise ConfigError(
            f"strategy hsdp: replicate {options.replicate}{wanted} on {world_size} ranks",
            cause="the sizes of the mesh multiply to nodes x ranks per node",
            hint="choose both so, for instance replicate = nodes and shard = ranks per node",
        )
    return (("replicate", options.replicate), ("shard", shard))


STRATEGY = Hsdp()
