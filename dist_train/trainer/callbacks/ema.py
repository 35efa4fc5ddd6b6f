"""Keep an exponential moving average of the weights, evaluate with it, and save it in each checkpoint.

    trainer:
      callbacks:
        - target: ema
          args: {decay: 0.999}

After every `every_steps`-th step: average = decay * average + (1 - decay) * weights, for the parameters and
the floating-point buffers of the unwrapped model; other buffers are copied, and so are constant ones that
hold infinities (an attention mask). Buffers are rank 0's, as DDP takes them. The checkpoint holds the
averages as `ema/<name>`; `model/<name>` and `weights_hash` are of the trained weights. Export the averages by
`dist-train checkpoint export RUN --entry ema --out ema.safetensors`, or load them with
`dt.checkpoint.load_model(path, model, entry="ema")`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn

from dist_train.checkpoint.state.module_state import module_state
from dist_train.checkpoint.state.sharded_tensors import as_spread
from dist_train.distributed.parameter_shards import is_sharded, own_part
from dist_train.errors import ConfigError
from dist_train.strategies.stages.pipeline_module import pipeline_of
from dist_train.trainer.callback import Callback, CallbackContext


class EMA(Callback):
    """Exponential moving average of the weights.

    Args:
        decay: weight of the average's old value, at least 0 and less than 1.
        every_steps: optimizer steps between two updates.
        evaluate: evaluations see the averages in place of the weights.
    """

    checkpoint_key = "ema"

    def __init__(self, decay: float = 0.999, every_steps: int = 1, evaluate: bool = True) -> None:
        if not 0 <= decay < 1 or every_steps < 1:
            raise ConfigError(
                f"EMA: decay={decay}, every_steps={every_steps}",
                hint="decay is at least 0 and less than 1 (0.999), every_steps at least 1",
            )
        self._decay, self._every_steps, self._evaluate = decay, every_steps, evaluate
        self._average: dict[str, Tensor] = {}
        self._trained: dict[str, Tensor] = {}
        self._copied: set[str] = set()

    def on_start(self, context: CallbackContext) -> None:
        """Begin with the weights as they are, or bring a checkpoint's averages to their devices."""
        live = weights(context.model)
        if not self._average:
            self._average = {name: tensor.clone() for name, tensor in live.items()}
            self._share_buffers(context)
        else:
            self._average = {name: _like(self._average[name], tensor) for name, tensor in live.items()}
        # What other stages of a pipeline hold has no values here.
        self._copied = {n for n, tensor in live.items() if tensor.is_meta or not tensor.is_floating_point()}
        # The average of -inf and -inf is nan. Only where both are equal: diverging statistics do not count.
        for name in module_state(context.model).buffers & live.keys() - self._copied:
            if not live[name].isfinite().all() and torch.equal(live[name], self._average[name]):
                self._copied.add(name)

    def on_step_end(self, context: CallbackContext) -> None:
        """Move the averages towards the weights."""
        if context.step % self._every_steps:
            return
        live = weights(context.model)
        floating = [name for name in live if name not in self._copied]
        with torch.no_grad():
            # One call for all of them: a loop over the tensors would cost some microseconds each.
            # Of this rank's parts: buffers are plain beside sharded parameters, which torch does not mix.
            averages = [own_part(self._average[name]) for name in floating]
            torch._foreach_lerp_(averages, [own_part(live[name]) for name in floating], 1 - self._decay)
            for name in self._copied:
                self._average[name].copy_(live[name])
        self._share_buffers(context)

    def on_evaluation_start(self, context: CallbackContext) -> None:
        """Put the averages into the model."""
        if self._evaluate:
            live = weights(context.model)
            self._trained = {name: tensor.clone() for name, tensor in live.items()}
            _copy(self._average, live)

    def on_evaluation_end(self, context: CallbackContext, metrics: Mapping[str, float]) -> None:
        """Put the trained weights back."""
        if self._evaluate:
            _copy(self._trained, weights(context.model))
            self._trained = {}

    def state_dict(self) -> dict[str, Any]:
        """The averages by the model's names."""
        return dict(self._average)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from these averages; `on_start` brings them to the model's devices."""
        self._average = {name: tensor.clone() for name, tensor in state.items()}

    def _share_buffers(self, context: CallbackContext) -> None:
        """Each rank has its own running statistics: take rank 0's, so that the averages are equal."""
        if context.run.world_size == 1 or pipeline_of(context.model) is not None:
            return  # (each step of a pipeline makes them equal on a stage's copies)
        buffers = module_state(context.model).buffers
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for name in sorted(buffers & self._average.keys()):
            by_type.setdefault(self._average[name].dtype, []).append(self._average[name])
        for tensors in by_type.values():
            flat = torch.cat([tensor.flatten() for tensor in tensors])
            torch_dist.broadcast(flat, src=0)
            for tensor, part in zip(
                tensors, torch.split(flat, [one.numel() for one in tensors]), strict=True
            ):
                tensor.copy_(part.view_as(tensor))


def _like(average: Tensor, tensor: Tensor) -> Tensor:
    """A restored average on the device of its weight, and sharded as that."""
    if is_sharded(tensor):
        return average if is_sharded(average) else as_spread(average, tensor).clone()
    return average.to(tensor.device)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Live parameters and persistent buffers by their names in a checkpoint, tied ones once."""
    state = module_state(model)
    return {name: tensor.detach() for name, tensor in state.tensors.items() if name not in state.aliases}


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


CALLBACK = EMA
