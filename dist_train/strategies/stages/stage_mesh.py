"""Which ranks hold which stage of the model, and the groups that they talk in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as torch_dist

from dist_train.distributed.place import Place


@dataclass(frozen=True)
class StageMesh:
    """Sizes of the mesh: ranks of one stage's parts lie side by side, then the stages, then the copies.

    Args:
        replicate: whole copies of the pipeline.
        stages: number of stages.
        shard: ranks over which each stage's parameters are spread.
    """

    replicate: int
    stages: int
    shard: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.replicate * self.stages * self.shard

    @property
    def data_size(self) -> int:
        """Shares of the data."""
        return self.replicate * self.shard

    @property
    def dimensions(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes; those of one rank are left out, but not the stages."""
        named = (("replicate", self.replicate), ("stage", self.stages), ("shard", self.shard))
        return tuple((name, size) for name, size in named if size > 1 or name == "stage")

    def rank_of(self, replicate: int, stage: int, shard: int) -> int:
        """The rank at a place of the mesh."""
        return (replicate * self.stages + stage) * self.shard + shard

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Which copy, stage and part is a rank's."""
        rest, shard = divmod(rank, self.shard)
        replicate, stage = divmod(rest, self.stages)
        return replicate, stage, shard

    def place(self, rank: int) -> Place:
        """All stages of a pipeline read the same data; the last one knows the loss."""
        replicate, stage, shard = self.coordinates(rank)
        own = replicate * self.shard + shard
        return Place(self.dimensions, own, self.data_size, counts=stage == self.stages - 1)

    def pipeline_of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the stages of a rank's pipeline, in their order."""
        replicate, _, shard = self.coordinates(rank)
        return tuple(self.rank_of(replicate, stage, shard) for stage in range(self.stages))

    def stage_ranks(self, stage: int) -> tuple[int, ...]:
        """All ranks of one stage, by their share of the data."""
        return tuple(
            self.rank_of(replicate, stage, shard)
            for replicate in range(self.replicate)
            for shard in range(self.shard)
        )

    def pipelines(self) -> list[tuple[int, ...]]:
        """The ranks of each pipeline, by their share of the data."""
        return [self.pipeline_of(rank) for rank in self.stage_ranks(0)]


@dataclass(frozen=True)
class StageGroups:
    """The process groups of one rank.

    Args:
        ranks: of the stages of its pipeline.
        forward: activations go to the next stage; groups of their own for both directions, since NCCL runs
            what one group is given in order, and a stage sends in one direction while it waits in the other.
        backward: gradients go to the stage before.
        headers: gloo, on which the shapes travel; `forward` itself where that is gloo.
        copies: the ranks that hold the same stage; None where this is the only one.
        tied: stages that hold a tied weight -> the ranks of this pipeline that do, on those ranks.
    """

    ranks: tuple[int, ...]
    forward: torch_dist.ProcessGroup
    backward: torch_dist.ProcessGroup
    headers: torch_dist.ProcessGroup
    copies: torch_dist.ProcessGroup | None
    tied: dict[tuple[int, ...], torch_dist.ProcessGroup]


def form_groups(
    mesh: StageMesh, rank: int, tied: Iterable[tuple[int, ...]], timeout: timedelta
) -> StageGroups:
    """Form the groups of all ranks (collective).

    Args:
        mesh: of the job.
        rank: this one.
        tied: the stages of each tied weight; the same on all ranks.
        timeout: of every exchange.
    """
    pipelines = mesh.pipelines()

    def group(choices: Iterable[Sequence[int]], backend: str | None = None) -> torch_dist.ProcessGroup | None:
        own = None
        for ranks in choices:
            made = torch_dist.new_group(list(ranks), timeout=timeout, backend=backend)
            own = made if rank in ranks else own
        return own

    forward, backward = group(pipelines), group(pipelines)
    assert forward is not None
    assert backward is not None
    headers = forward if torch_dist.get_backend() == "gloo" else group(pipelines, "gloo")
    assert headers is not None
    copies = None
    if mesh.data_size > 1:
        copies = group(mesh.stage_ranks(stage) for stage in range(mesh.stages))
    tied_groups = {}
    for stages in sorted(set(tied)):
        made = group([ranks[stage] for stage in stages] for ranks in pipelines)
        if made is not None and mesh.coordinates(rank)[1] in stages:
            tied_groups[stages] = made
    return StageGroups(mesh.pipeline_of(rank), forward, backward, headers, copies, tied_groups)
