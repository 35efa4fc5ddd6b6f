"""Strategy `fsdp_tensor_parallel`: layers cut within groups of ranks, and spread over these groups."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from dataclasses import replace

from pydantic import Field
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dist_train.distributed.place import Place
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.fully_sharded.parameter_sharding import (
    ShardedStrategy,
    ShardingOptions,
    fitting_units,
    shard_units,
)
from dist_train.strategies.rank_memory import RankMemory
from dist_train.strategies.rank_zero_weights import take_rank_zero_weights
from dist_train.strategies.tensor_cut.cut_memory import with_parts
from dist_train.strategies.tensor_cut.cut_model import ModelCutter
from dist_train.strategies.tensor_cut.group_check import check_first_forward
from dist_train.strategies.tensor_cut.tensor_plan import (
    CutPlan,
    compiled_is_refused,
    describe_plan,
    plan_cuts,
)
from dist_train.strategies.tensor_cut.tensor_styles import PlanOptions
from dist_train.strategies.unwrap import unwrap

logger = logging.getLogger(__name__)

# A plan names modules: whether it can work is known from the model alone, before ranks are started.
NEEDS_MODEL = True

_SHARD, _TENSOR = "shard", "tensor"


class FsdpTensorParallelOptions(ShardingOptions, PlanOptions):
    """The sizes of both dimensions of the mesh, the plan of tensor_parallel and the options of fsdp."""

    tensor: int = Field(2, ge=1, description="ranks that compute every sample together")
    shard: int | None = Field(
        None, ge=1, description="groups of them over which parameters are spread; None: as many as there are"
    )


class FsdpTensorParallel(ShardedStrategy):
    """Each group of neighbouring ranks computes its samples together; fully_shard spreads over the groups."""

    name = "fsdp_tensor_parallel"
    Options: type[StrategyOptions] = FsdpTensorParallelOptions

    def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
        """Neighbouring ranks are one tensor group, and read the same data."""
        assert isinstance(options, FsdpTensorParallelOptions)
        tensor = options.tensor
        shard = options.shard or world_size // tensor
        if shard * tensor != world_size:
            wanted = f"shard {options.shard} x " if options.shard else ""
            raise ConfigError(
                f"strategy fsdp_tensor_parallel: {wanted}tensor {tensor} on {world_size} ranks",
                cause="the sizes of the mesh multiply to nodes x ranks per node",
                hint="choose `tensor` so that it divides the ranks of one node",
            )
        return Place(((_SHARD, shard), (_TENSOR, tensor)), rank // tensor, shard, counts=rank % tensor == 0)

    def candidates(self, world_size: int) -> list[dict[str, int]]:
        """The meshes of this size in which both dimensions have several ranks, and a group fits one node."""
        sizes = [size for size in (2, 4, 8) if world_size % size == 0 and size < world_size]
        return [{_SHARD: world_size // size, _TENSOR: size} for size in sizes]

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        assert isinstance(options, FsdpTensorParallelOptions)
        if unwrap(model) is not model:
            raise compiled_is_refused(self.name)
        units = fitting_units(model, run, options)
        plan = self.plan(model, options, run.world_size)
        take_rank_zero_weights(model, run)
        names, sizes = zip(*run.place.mesh, strict=True)
        mesh = init_device_mesh(run.device.type, sizes, mesh_dim_names=names)
        cutter = ModelCutter(plan, mesh[_TENSOR], run.device)
        shard_units(model, units, run, options, mesh[_SHARD], before=cutter.cut)
        check_first_forward(model, cutter.group, cutter.mode)
        if run.is_main:
            logger.info("layers cut over %d ranks each: %s", options.tensor, describe_plan(plan))
        return model

    def plan(self, model: nn.Module, options: StrategyOptions, world_size: int) -> CutPlan:
        """Find the layers to cut.

        Raises:
            ConfigError: the plan does not fit the model.
        """
        assert isinstance(options, FsdpTensorParallelOptions)
        return plan_cuts(model, options.plan, options.tensor)

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """What fully_shard makes of a group's parts: the first rank of the first and of the last group."""
        plan = self.plan(model, options, world_size)
        assert isinstance(options, FsdpTensorParallelOptions)
        with with_parts(model, plan):
            found = self.sharded_memory(options, model, world_size // options.tensor, accumulate)
        return [replace(one, rank=one.rank * options.tensor) for one in found]

    def as_on_a_rank(
        self, options: StrategyOptions, model: nn.Module, world_size: int
    ) -> AbstractContextManager[None]:
        """Let the model, on meta, be what one rank computes with."""
        return with_parts(model, self.plan(model, options, world_size))


STRATEGY = FsdpTensorParallel()
