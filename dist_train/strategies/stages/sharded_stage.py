"""Spread the parameters of one stage over ranks, as the strategy fsdp spreads those of a whole model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from dist_train.distributed.parameter_shards import reshard_without_backward
from dist_train.distributed.run import Run
from dist_train.strategies.fully_sharded.parameter_sharding import refuse_unshardable
from dist_train.strategies.fully_sharded.sharding_units import Unit, choose_units
from dist_train.strategies.stages.stage_cut import StageCut
from dist_train.strategies.stages.stage_mesh import StageMesh
from dist_train.strategies.stages.stage_passes import StageLayers


def units_of_stage(model: nn.Module, cut: StageCut, stage: int) -> list[Unit]:
    """The members of each ModuleList, as fsdp has them, whose parameters are all of this stage alone.

    Raises:
        ConfigError: a parameter cannot be sharded, or is shared between units.
    """
    refuse_unshardable(model)
    names = {id(p): name for name, p in model.named_parameters()}
    return [
        unit
        for unit in choose_units(model, None)
        if all(cut.stages_of[names[id(p)]] == (stage,) for p in unit.module.parameters())
    ]


def shard_stage(
    model: nn.Module, layers: StageLayers, units: Sequence[Unit], mesh: StageMesh, run: Run
) -> None:
    """Shard a stage in place, once the tensors of other stages are on meta (collective).

    Args:
        model: the user's.
        layers: of this stage: what is called.
        units: gathered by themselves; the rest of the stage is one more.
        mesh: of the job; the copies of a stage replicate its parts.
        run: this rank's.
    """
    sizes = (mesh.replicate, mesh.stages, mesh.shard)
    named = init_device_mesh(run.device.type, sizes, mesh_dim_names=("replicate", "stage", "shard"))
    own = named["replicate", "shard"] if mesh.replicate > 1 else named["shard"]
    for unit in units:
        fully_shard(unit.module, mesh=own)
    elsewhere = {parameter for parameter in model.parameters() if parameter.is_meta}
    # The rest of the stage: what is called is `layers`, not the model.
    fully_shard(layers, mesh=own, reshard_after_forward=False, ignored_params=elsewhere)
    cast("FSDPModule", layers).set_reduce_scatter_unused_params(True)
    reshard_without_backward(layers)
