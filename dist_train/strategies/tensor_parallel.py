"""Strategy `tensor_parallel`: layers are cut over all ranks, which compute every sample together."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from dist_train.distributed.parameter_shards import clip_gradients
from dist_train.distributed.place import Place
from dist_train.distributed.run import Run
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.rank_memory import RankMemory
from dist_train.strategies.rank_zero_weights import refuse_unlike_models, take_rank_zero_weights
from dist_train.strategies.tensor_cut.cut_memory import tensor_memory, with_parts
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
_OF_A_NODE = 8


class TensorParallelOptions(PlanOptions):
    """Which layers are cut, and how."""


class TensorParallel:
    """Each rank has a part of the layers that the plan names, and all of the others."""

    name = "tensor_parallel"
    Options: type[StrategyOptions] = TensorParallelOptions
    averages = True
    # `wrap` takes the model where it was built: whole, it may not fit on one device.
    places_model = True

    def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
        """All ranks read the same data."""
        return Place((("tensor", world_size),), 0, 1, counts=rank == 0)

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        if unwrap(model) is not model:
            raise compiled_is_refused(self.name)
        refuse_unlike_models(model, run.control)
        plan = self.plan(model, options, run.world_size)
        take_rank_zero_weights(model, run)
        mesh = init_device_mesh(run.device.type, (run.world_size,), mesh_dim_names=("tensor",))
        cutter = ModelCutter(plan, mesh, run.device)
        cutter.cut(model)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(run.device)
        check_first_forward(model, cutter.group, cutter.mode)
        if run.is_main:
            logger.info("layers cut over %d ranks: %s", run.world_size, describe_plan(plan))
        return model

    def plan(self, model: nn.Module, options: StrategyOptions, world_size: int) -> CutPlan:
        """Find the layers to cut.

        Raises:
            ConfigError: the plan does not fit the model.
        """
        assert isinstance(options, TensorParallelOptions)
        return plan_cuts(model, options.plan, world_size)

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """Its parts, and all of what is not cut."""
        return [tensor_memory(model, self.plan(model, options, world_size))]

    def candidates(self, world_size: int) -> list[dict[str, int]]:
        """Worth a look within one node only: ranks exchange twice in each block."""
        return [{}] if world_size <= _OF_A_NODE else []

    def as_on_a_rank(
        self, options: StrategyOptions, model: nn.Module, world_size: int
    ) -> AbstractContextManager[None]:
        """Let the model, on meta, be what one rank computes with."""
        return with_parts(model, self.plan(model, options, world_size))

    def spreads_parameters(self, options: StrategyOptions) -> bool:
        """Whole ones too, as replicas."""
        return True

    def unwrap(self, module: nn.Module) -> nn.Module:
        return unwrap(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        # No gradient is exchanged: what ranks exchange is within each forward and backward pass.
        return nullcontext()

    def clip_norm(self, module: nn.Module, max_norm: float) -> Tensor:
        return clip_gradients(module.parameters(), max_norm)


STRATEGY = TensorParallel()
