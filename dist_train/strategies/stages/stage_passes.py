"""What one rank of a pipeline does when its model is called: receive, run its layers, send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dist_train.errors import UsageError
from dist_train.strategies.stages.action_order import Schedule
from dist_train.strategies.stages.activations import (
    Received,
    Sending,
    receive_output,
    send_output,
)
from dist_train.strategies.stages.model_layers import Layer
from dist_train.strategies.stages.stage_cut import StageCut
from dist_train.strategies.stages.stage_mesh import StageGroups, StageMesh
from dist_train.strategies.stages.stage_random import draw_seed, seeded

# Messages that an evaluation has on its way: a stage is not ahead of the next one by more.
_AHEAD = 8


class OutputElsewhere(BaseException):
    """Ends a task's loss on a stage that does not know the model's output.

    No Exception: the task's own `except Exception` must not take it.
    """


class StageLayers(nn.Module):
    """The layers of one stage, called one after the other.

    Args:
        model: the user's; its modules are those that the layers call.
        layers: in their order.
    """

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.model = model
        self._layers = tuple(layers)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the last of them returns."""
        first, *rest = self._layers
        value = first.call(*args, **kwargs)
        for layer in rest:
            value = layer.call(value)
        return value


@dataclass
class StagePass:
    """The forward pass of one micro-batch through this stage, for its backward pass.

    Args:
        received: what came from the stage before, and wants a gradient.
        returned: tensors that went to the next stage.
        calls: how often the task has called the model.
        seed: of its random numbers, the same on all stages.
    """

    received: list[Received] = field(default_factory=list)
    returned: list[Tensor] = field(default_factory=list)
    calls: int = 0
    seed: int = 0


class Pipeline:
    """What a rank knows of its pipeline.

    Args:
        mesh: of the job.
        stage: this rank's.
        groups: in which it talks.
        layers: of this stage.
        cut: of the whole model.
        schedule: the order of a step's passes.
        device: of this rank.
    """

    def __init__(
        self,
        mesh: StageMesh,
        stage: int,
        groups: StageGroups,
        layers: StageLayers,
        cut: StageCut,
        schedule: Schedule,
        device: torch.device,
    ) -> None:
        self.mesh, self.stage, self.groups, self.layers = mesh, stage, groups, layers
        self.cut, self.schedule, self.device = cut, schedule, device
        self.sending = Sending()
        self.has_compared_batches = False
        self.current: StagePass | None = None

    @property
    def is_first(self) -> bool:
        """Whether this stage is given the model's arguments."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage returns the model's output."""
        return self.stage == self.mesh.stages - 1

    @property
    def previous(self) -> int:
        """The rank of the stage before."""
        return self.groups.ranks[self.stage - 1]

    @property
    def following(self) -> int:
        """The rank of the next stage."""
        return self.groups.ranks[self.stage + 1]

    @contextmanager
    def one_pass(self) -> Iterator[StagePass]:
        """The model is called once inside: by a task, on a micro-batch; on all stages of the pipeline."""
        self.current = done = StagePass(seed=draw_seed())
        try:
            with seeded(done.seed, 0):
                yield done
        finally:
            self.current = None

    def call(self, args: Any, kwargs: Any) -> Any:
        """The model is called: inside of `one_pass` by a task, else by a program of its own."""
        current = self.current
        if current is None:
            return self._output_everywhere(args, kwargs)
        current.calls += 1
        if current.calls > 1:
            raise UsageError(
                "the loss calls its model more than once, which a pipeline cannot do",
                cause="each stage computes each micro-batch once",
                hint="call model(...) once, with everything it needs; or another strategy, such as fsdp",
            )
        output = self._through_stage(current, args, kwargs)
        if not self.is_last:
            raise OutputElsewhere
        return output

    def _through_stage(self, current: StagePass, args: Any, kwargs: Any) -> Any:
        self.layers.training = self.layers.model.training
        if self.is_first:
            with seeded(current.seed, 1, self.stage):
                output = self.layers(*args, **kwargs)
        else:
            groups = self.groups
            value, current.received = receive_output(
                self.previous, groups.headers, groups.forward, self.device, current.seed
            )
            with seeded(current.seed, 1, self.stage):
                output = self.layers(value)
        if not self.is_last:
            groups = self.groups
            current.returned = send_output(
                output, self.following, groups.headers, groups.forward, self.sending, current.seed
            )
            if not torch.is_grad_enabled():
                self.sending.finish(all_but=_AHEAD)
        return output

    def _output_everywhere(self, args: Any, kwargs: Any) -> Any:
        """Of a call without gradients: the last stage sends its output to all others."""
        if torch.is_grad_enabled():
            raise UsageError(
                "a model of the strategy pipeline is called, and gradients are enabled",
                cause="its backward pass goes through other ranks: no rank has a loss to call backward() on",
                hint="dt.forward_backward(model, batches, loss_sum, units) does a step's passes; "
                "to predict: with torch.no_grad()",
            )
        current = StagePass(seed=draw_seed())
        output = self._through_stage(current, args, kwargs)
        groups, seed = self.groups, current.seed
        if self.is_last:
            for rank in groups.ranks[:-1]:
                send_output(output, rank, groups.headers, groups.backward, self.sending, seed)
        else:
            output, _ = receive_output(groups.ranks[-1], groups.headers, groups.backward, self.device, seed)
        self.sending.finish()
        return output
