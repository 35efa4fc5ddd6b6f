"""What a rank of each stage holds, in closed form."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dist_train.strategies.rank_memory import RankMemory
from dist_train.strategies.stages.action_order import Schedule
from dist_train.strategies.stages.stage_cut import StageCut
from dist_train.strategies.stages.stage_mesh import StageMesh


def stage_memory(
    model: nn.Module, cut: StageCut, mesh: StageMesh, schedule: Schedule, accumulate: int
) -> list[RankMemory]:
    """Return the memory of one rank of each stage, the one that holds most first.

    Args:
        model: plain, on any device.
        cut: its stages.
        mesh: of the job.
        schedule: of the passes.
        accumulate: micro-batches per step.
    """
    found = [_of_stage(model, cut, mesh, stage) for stage in range(mesh.stages)]
    note = (
        "activations: of one micro-batch in the whole model; with 1f1b the first stage keeps about as much, "
        f"its own part of {mesh.stages} micro-batches"
    )
    if schedule == "gpipe":
        note += f"; gpipe keeps those of all {accumulate}"
    return sorted(
        (replace(one, notes=(note, *one.notes)) for one in found),
        key=lambda one: (-one.parameters - one.gathered, one.rank),
    )


def _of_stage(model: nn.Module, cut: StageCut, mesh: StageMesh, stage: int) -> RankMemory:
    shapes, stored, reduced, whole, whole_trained = {}, 0, 0, 0, 0
    for name, parameter in model.named_parameters():
        if stage not in cut.stages_of[name]:
            shapes[name] = (0, *parameter.shape[1:]) if parameter.dim() else (0,)
            continue
        rows = -(-parameter.shape[0] // mesh.shard) if parameter.dim() else 1
        part = (rows, *parameter.shape[1:]) if parameter.dim() else ()
        shapes[name] = part
        count = parameter.element_size()
        for size in part:
            count *= size
        stored += count
        reduced += count if parameter.requires_grad else 0
        whole += parameter.numel() * parameter.element_size()
        whole_trained += parameter.numel() * parameter.element_size() if parameter.requires_grad else 0
    sharded = mesh.shard > 1
    return RankMemory(
        rank=mesh.rank_of(0, stage, 0),
        shapes=shapes,
        parameters=stored,
        gradients=reduced,
        gathered=whole if sharded else 0,
        exchange=whole_trained if sharded else 0,
        whole_gradients=True,
        notes=("gathered: the whole stage",) if sharded else (),
    )
