"""Strategy `pipeline`: the model's layers are cut into stages, each on ranks of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from dist_train.distributed.parameter_shards import (
    Replicas,
    clip_gradients,
    gradient_norm,
)
from dist_train.distributed.place import Place
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import MicroBatchWork, StrategyOptions
from dist_train.strategies.rank_memory import RankMemory
from dist_train.strategies.rank_zero_weights import refuse_unlike_models, take_rank_zero_weights
from dist_train.strategies.stages.action_order import Schedule
from dist_train.strategies.stages.held_tensors import hold_own_tensors
from dist_train.strategies.stages.pipeline_module import make_pipeline_module, pipeline_of
from dist_train.strategies.stages.pipeline_step import run_pipeline_step
from dist_train.strategies.stages.sharded_stage import shard_stage, units_of_stage
from dist_train.strategies.stages.stage_cut import cut_into_stages
from dist_train.strategies.stages.stage_gradients import StageParameters
from dist_train.strategies.stages.stage_memory import stage_memory
from dist_train.strategies.stages.stage_mesh import StageMesh, form_groups
from dist_train.strategies.stages.stage_passes import Pipeline, StageLayers
from dist_train.strategies.unwrap import unwrap

logger = logging.getLogger(__name__)

# `launch` builds the model without values and cuts it, before any rank is started.
NEEDS_MODEL = True

B = TypeVar("B")


class PipelineOptions(StrategyOptions):
    """The sizes of the mesh, where the model is cut, and in which order a step's passes are done."""

    stage: int | None = Field(
        None, ge=1, description="stages of the model; None: as many as there are ranks for each copy"
    )
    replicate: int | None = Field(
        None, ge=1, description="copies of the pipeline, each with data of its own; None: from the ranks"
    )
    shard: int = Field(
        1, ge=1, description="ranks over which each stage's parameters are spread (as fsdp), with own data"
    )
    split: tuple[str, ...] | None = Field(
        None, description="layers at which the second and each further stage begins; None: by bytes"
    )
    schedule: Schedule = Field(
        "1f1b", description="1f1b keeps the activations of at most `stage` micro-batches; gpipe of all"
    )


class PipelineStrategy:
    """Each rank holds the layers of one stage; micro-batches pass through all stages."""

    name = "pipeline"
    Options: type[StrategyOptions] = PipelineOptions
    averages = True
    # `wrap` takes the model where it was built: whole, it may not fit on one device.
    places_model = True

    def place(self, options: StrategyOptions, rank: int, world_size: int) -> Place:
        """The stages of a pipeline have one share of the data, which the last one counts."""
        return _mesh(options, world_size).place(rank)

    def spreads_parameters(self, options: StrategyOptions) -> bool:
        """Where a stage has several ranks."""
        return isinstance(options, PipelineOptions) and options.shard > 1

    def candidates(self, world_size: int) -> list[dict[str, int]]:
        """Meshes of this size with two, four and eight stages."""
        sizes = [size for size in (2, 4, 8) if world_size % size == 0]
        return [{"stage": size, "replicate": world_size // size} for size in sizes]

    def refuse_micro_batches(self, options: StrategyOptions, world_size: int, count: int) -> None:
        """Raise ConfigError for fewer micro-batches in a step than there are stages."""
        stages = _mesh(options, world_size).stages
        if count < stages:
            raise ConfigError(
                f"strategy pipeline: {stages} stages, and trainer.accumulate is {count}",
                cause="a step's micro-batches pass through the stages one after the other: with fewer of "
                "them than stages some never work at the same time",
                hint=f"trainer.accumulate={stages} or more: 4 x {stages} keep the stages busy",
            )

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        mesh = _mesh(options, run.world_size)
        assert isinstance(options, PipelineOptions)
        _refuse_unfit(model)
        cut = cut_into_stages(model, mesh.stages, options.split)
        stage = mesh.coordinates(run.rank)[1]
        units = units_of_stage(model, cut, stage) if mesh.shard > 1 else []
        refuse_unlike_models(model, run.control)
        take_rank_zero_weights(model, run)
        hold_own_tensors(model, cut.stages_of, stage, run.device)
        tied = {stages for stages in cut.stages_of.values() if len(stages) > 1}
        groups = form_groups(mesh, run.rank, tied, _timeout(run))
        layers = StageLayers(model, cut.layers[stage])
        if mesh.shard > 1:
            shard_stage(model, layers, units, mesh, run)
        pipeline = Pipeline(mesh, stage, groups, layers, cut, options.schedule, run.device)
        make_pipeline_module(model, pipeline)
        if run.is_main:
            logger.info("pipeline of %d stages: %s", mesh.stages, cut.describe())
        return model

    def unwrap(self, module: nn.Module) -> nn.Module:
        return unwrap(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()  # a step exchanges once, whatever the number of its micro-batches

    def run_step(self, module: nn.Module, batches: Sequence[B], work: MicroBatchWork[B]) -> None:
        """All forward and backward passes of a step."""
        # With one process prepare leaves the model as it is, whatever the strategy.
        if pipeline_of(module) is None:
            for batch in batches:
                work.backward(work.loss(batch))
        else:
            run_pipeline_step(module, batches, work)

    def gradient_norm(self, module: nn.Module) -> Tensor:
        """Of the whole gradient over all stages; equal on all ranks."""
        return gradient_norm(module.parameters(), _replicas(module))

    def clip_norm(self, module: nn.Module, max_norm: float) -> Tensor:
        return clip_gradients(module.parameters(), max_norm, _replicas(module))

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """What each stage holds."""
        assert isinstance(options, PipelineOptions)
        mesh = _mesh(options, world_size)
        if accumulate < mesh.stages:
            raise ConfigError(
                f"strategy pipeline: with trainer.accumulate={accumulate} a step has fewer micro-batches "
                "than the model has stages",
                hint=f"trainer.accumulate={mesh.stages} or more",
            )
        cut = cut_into_stages(model, mesh.stages, options.split)
        return stage_memory(model, cut, mesh, options.schedule, accumulate)


def _mesh(options: StrategyOptions, world_size: int) -> StageMesh:
    if not isinstance(options, PipelineOptions):
        raise TypeError(f"pipeline takes PipelineOptions, not {type(options).__name__}")
    given = (options.replicate or 1) * options.shard
    stages = options.stage or max(1, world_size // given)
    replicate = options.replicate or max(1, world_size // (stages * options.shard))
    mesh = StageMesh(replicate, stages, options.shard)
    if mesh.world_size != world_size:
        shard = options.shard if options.shard > 1 else None
        named = [("replicate", options.replicate), ("stage", options.stage), ("shard", shard)]
        shown = " x ".join(f"{name} {size}" for name, size in named if size is not None)
        raise ConfigError(
            f"strategy pipeline: {shown} on {world_size} ranks",
            cause="the sizes of the mesh multiply to nodes x ranks per node",
            hint="stage is a divisor of the number of ranks; replicate and shard multiply to the rest",
        )
    return mesh


def _refuse_unfit(model: nn.Module) -> None:
    name = type(model).__name__
    if any("_orig_mod" in module._modules for module in model.modules()):
        raise ConfigError(
            f"{name} is compiled, which the strategy pipeline cannot cut into stages",
            hint="leave trainer.compile (torch.compile) out",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"{name} has no parameter that requires a gradient",
            hint="use the model as it is: nothing of it is trained",
        )


def _timeout(run: Run) -> timedelta:
    """That of the control group: of every collective of the run."""
    assert run.control.group is not None
    options: Any = run.control.group._get_backend(torch.device("cpu")).options
    found: timedelta = options._timeout
    return found


def _replicas(module: nn.Module) -> Replicas | None:
    pipeline = pipeline_of(module)
    if pipeline is None:
        return None
    held = StageParameters(pipeline.mesh, pipeline.cut.stages_of)
    return {parameter: held.replicas(parameter, stages) for parameter, stages in held.own(module)}.__getitem__


STRATEGY = PipelineStrategy()
