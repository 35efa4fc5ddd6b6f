"""All forward and backward passes of one optimizer step, over the stages of a pipeline.

torch's own schedules (torch.distributed.pipelining) are made for one shape: micro-batches of unequal sizes
raise, or abort the process in gloo; another number of micro-batches needs a new stage and a new schedule;
they call the loss themselves, and a traced model loses its tied weights. Our steps have unequal
micro-batches, some with a stand-in sample of weight 0, and shorter last steps of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from dist_train.distributed.parameter_shards import own_part, sharded_modules
from dist_train.errors import UsageError
from dist_train.strategies.alike_tensors import are_alike, tensors_inside
from dist_train.strategies.base import MicroBatchWork
from dist_train.strategies.stages.action_order import action_order
from dist_train.strategies.stages.activations import receive
from dist_train.strategies.stages.pipeline_module import pipeline_of
from dist_train.strategies.stages.stage_gradients import finish_gradients
from dist_train.strategies.stages.stage_passes import Pipeline, StagePass

B = TypeVar("B")


def run_pipeline_step(module: nn.Module, batches: Sequence[B], work: MicroBatchWork[B]) -> None:
    """Add the gradients of a step's micro-batches up (collective).

    Afterwards `.grad` is their sum on each stage, the mean over the shares of the data.

    Args:
        module: of a pipeline.
        batches: equally many on all ranks; those of one pipeline are the same.
        work: its loss and backward pass.

    Raises:
        UsageError: fewer micro-batches than stages, gradients of an earlier step, stages that read unlike
            batches, or a loss that does not go through the model.
    """
    pipeline = pipeline_of(module)
    assert pipeline is not None
    stages = pipeline.mesh.stages
    if len(batches) < stages:
        raise UsageError(
            f"a step of {len(batches)} micro-batches on a pipeline of {stages} stages",
            cause="with fewer micro-batches than stages some of them never work at the same time",
            hint=f"trainer.accumulate={stages} or more (a loop of its own: so many batches per step)",
        )
    _refuse_gradients_of_before(module)
    if not pipeline.has_compared_batches:
        _refuse_unlike_batches(pipeline, batches)
    step = _Step(pipeline, module, batches, work)
    for action in action_order(pipeline.schedule, pipeline.stage, stages, len(batches)):
        if action.kind == "forward":
            step.forward(action.micro)
        else:
            step.backward(action.micro)
    pipeline.sending.finish()
    finish_gradients(pipeline, module)


def _refuse_gradients_of_before(module: nn.Module) -> None:
    """What they were exchanged for is done: those of tied weights would be added up once more."""
    found = [own_part(p.grad) for p in module.parameters() if p.grad is not None]
    if any(bool(gradient.any()) for gradient in found):
        raise UsageError(
            "a step of a pipeline begins, and gradients of an earlier one are there",
            cause="it exchanges them at its end, with what is there already",
            hint="optimizer.zero_grad() before dt.forward_backward, which takes all micro-batches of a step "
            "in one call",
        )


def _refuse_unlike_batches(pipeline: Pipeline, batches: Sequence[B]) -> None:
    """The first stage would compute with its inputs, and the last one compare with targets of others."""
    pipeline.has_compared_batches = True
    if not are_alike(tensors_inside(list(batches)), pipeline.groups.headers, torch.device("cpu")):
        raise UsageError(
            "the stages of a pipeline have unlike batches in the first training step",
            cause="they compute every sample together, and must read the same ones",
            hint="read the data with dt.loader, or by run.place.data_rank and run.place.data_size in place "
            "of run.rank and run.world_size",
        )


class _Step(Generic[B]):
    def __init__(
        self, pipeline: Pipeline, module: nn.Module, batches: Sequence[B], work: MicroBatchWork[B]
    ) -> None:
        self._pipeline, self._batches, self._work = pipeline, batches, work
        self._units = sharded_modules(module)
        self._passes: dict[int, tuple[StagePass, Tensor]] = {}

    def forward(self, micro: int) -> None:
        with self._pipeline.one_pass() as current:
            loss = self._work.loss(self._batches[micro])
        if current.calls != 1:
            raise UsageError(
                "a micro-batch's loss does not call the model",
                hint="call model(...) once in the loss of each micro-batch",
            )
        if self._pipeline.is_last:
            _refuse_other_losses(loss)
        self._passes[micro] = (current, loss)

    def backward(self, micro: int) -> None:
        current, loss = self._passes.pop(micro)
        self._exchange_in_last(micro == len(self._batches) - 1)
        pipeline = self._pipeline
        if pipeline.is_last:
            self._work.backward(loss)
        else:
            reached = [tensor for tensor in current.returned if tensor.requires_grad]
            gradients = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in reached]
            for gradient in gradients:
                receive(gradient, pipeline.following, pipeline.groups.backward)
            if reached:
                torch.autograd.backward(reached, gradients)
        for one in current.received:
            gradient = torch.zeros_like(one.value) if one.gradient is None else one.gradient
            pipeline.sending.send(gradient, pipeline.previous, pipeline.groups.backward)

    def _exchange_in_last(self, last: bool) -> None:
        """Of a sharded stage: add gradients up whole, and exchange them in the last backward pass."""
        for unit in self._units:
            unit.set_requires_gradient_sync(last, recurse=False)
            unit.set_is_last_backward(last)


def _refuse_other_losses(loss: Tensor) -> None:
    if loss.is_meta:
        raise UsageError(
            "the loss reads parameters of the model, and other stages hold some of them",
            cause="they have no values on the last stage",
            hint="compute the loss from what model(...) returns: weight decay belongs to the optimizer; or "
            "another strategy, such as fsdp",
        )
    if not loss.requires_grad:
        raise UsageError(
            "the loss does not depend on what model(...) returns, so that there is nothing to learn from",
            hint="compute it from the output, without detach() and torch.no_grad()",
        )
