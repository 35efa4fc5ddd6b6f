"""What follows a step's backward passes: gradients of tied weights, of copies of a stage, and the norm."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from dist_train.distributed.parameter_shards import is_sharded, number_of_parts, own_part
from dist_train.strategies.stages.stage_mesh import StageGroups, StageMesh

# What is exchanged at once.
_BUCKET_BYTES = 25 * 2**20


@dataclass(frozen=True)
class StageParameters:
    """A rank's own parameters, with the stages that hold each.

    Args:
        mesh: of the job.
        stages_of: name of each parameter -> its stages.
    """

    mesh: StageMesh
    stages_of: Mapping[str, tuple[int, ...]]

    def own(self, module: nn.Module) -> Iterator[tuple[nn.Parameter, tuple[int, ...]]]:
        """This rank's parameters and the stages of each, tied ones once."""
        for name, parameter in module.named_parameters():
            if not parameter.is_meta:
                yield parameter, self.stages_of[name]

    def replicas(self, parameter: nn.Parameter, stages: tuple[int, ...]) -> int:
        """How many ranks of the job hold what this rank holds of a parameter."""
        return len(stages) * self.mesh.data_size // number_of_parts(parameter)


def finish_gradients(pipeline: Any, module: nn.Module) -> None:
    """Add gradients of tied weights up, average those of a stage's copies, share its buffers (collective)."""
    groups: StageGroups = pipeline.groups
    held = StageParameters(pipeline.mesh, pipeline.cut.stages_of)
    trained = [(p, stages) for p, stages in held.own(module) if p.requires_grad]
    _sum_tied(groups, trained)
    if pipeline.mesh.data_size == 1:
        return
    assert groups.copies is not None
    whole = [p for p, _ in trained if not is_sharded(p)]
    if whole:
        _average(groups.copies, [_gradient(p) for p in whole], pipeline.mesh.data_size)
    _share_buffers(groups.copies, module)


def _sum_tied(groups: StageGroups, trained: Iterable[tuple[nn.Parameter, tuple[int, ...]]]) -> None:
    """Each stage of a tied weight has the gradient of its own use of it alone."""
    of_stages: dict[tuple[int, ...], list[Tensor]] = {}
    for parameter, stages in trained:
        if len(stages) > 1:
            of_stages.setdefault(stages, []).append(_gradient(parameter))
    for stages, gradients in sorted(of_stages.items(), key=lambda item: item[0]):
        _average(groups.tied[stages], gradients, 1)


def _gradient(parameter: nn.Parameter) -> Tensor:
    """What this rank holds of it; zeros where no loss has reached it: other ranks may have some."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return own_part(parameter.grad)


@torch.no_grad()
def _average(group: torch_dist.ProcessGroup, tensors: Iterable[Tensor], divisor: int) -> None:
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        torch_dist.all_reduce(flat, group=group)
        if divisor != 1:
            flat /= divisor
        _put_back(flat, bucket)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one dtype, some MiB together; in the same order on all ranks."""
    of_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        of_dtype.setdefault(tensor.dtype, []).append(tensor)
    for same in of_dtype.values():
        bucket: list[Tensor] = []
        for tensor in same:
            if bucket and sum(each.nbytes for each in bucket) + tensor.nbytes > _BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket


def _put_back(flat: Tensor, tensors: list[Tensor]) -> None:
    for tensor, values in zip(tensors, torch.split(flat, [each.numel() for each in tensors]), strict=True):
        tensor.copy_(values.view_as(tensor))


@torch.no_grad()
def _share_buffers(group: torch_dist.ProcessGroup, module: nn.Module) -> None:
    """The first copy's, such as a BatchNorm's running statistics: as DDP takes them before each forward."""
    own = [buffer for buffer in module.buffers() if not buffer.is_meta]
    first = torch_dist.get_process_group_ranks(group)[0]
    for bucket in _buckets(own):
        flat = torch.cat([buffer.reshape(-1) for buffer in bucket])
        torch_dist.broadcast(flat, src=first, group=group)
        _put_back(flat, bucket)
