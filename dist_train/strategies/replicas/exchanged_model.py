"""What the strategies have in common whose ranks hold the whole model: torch's DistributedDataParallel."""

from __future__ import annotations

import inspect
import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.distributed as torch_dist
from pydantic import Field
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.rank_memory import RankMemory, whole_model_memory
from dist_train.strategies.unwrap import unwrap

logger = logging.getLogger(__name__)

# Hooks with a state (PowerSGD's error feedback) are none of these: a restart without it has other bits.
_HOOKS = {"fp16": fp16_compress_hook, "bf16": bf16_compress_hook}
_GIVEN_UP = (
    "gradients are exchanged in %s: a restart at this size has the same bits, but losses equal those of one "
    "process and of other numbers of ranks to that precision only"
)


class ReplicaOptions(StrategyOptions):
    """DistributedDataParallel's options of the same names."""

    broadcast_buffers: bool = Field(True, description="rank 0's buffers on all ranks before each forward")
    find_unused_parameters: bool = Field(False, description="parameters may take no part in a step")
    static_graph: bool = Field(False, description="every step uses the same parameters")
    gradient_as_bucket_view: bool = Field(True, description="gradients live in the exchange buffers")
    bucket_cap_mb: float | None = Field(
        None, gt=0, description="size of an exchange buffer, MiB; None: torch's 25 with a first one of 1"
    )
    communication_hook: Literal["fp16", "bf16"] | None = Field(
        None, description="gradients are exchanged, and added up, in it (bf16: GPUs only); None: as they are"
    )


class ReplicatedStrategy:
    """Every rank holds the whole model; gradients are averaged during the backward pass."""

    averages = True

    def exchanged(
        self, model: nn.Module, run: Run, options: ReplicaOptions, device: torch.device | None
    ) -> nn.Module:
        """Put DistributedDataParallel around a model.

        Args:
            device: the GPU that all of the model lies on; None: it lies on several, or on the CPU.

        Raises:
            ConfigError: nothing of the model is trained, or an option does not fit the device.
        """
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(
                f"{type(model).__name__} has no parameter that requires a gradient",
                hint="use the model as it is: nothing of it is trained",
            )
        _refuse_hook(options, run.device.type)
        wrapped = DistributedDataParallel(
            model,
            device_ids=None if device is None else [device.index],
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
            bucket_cap_mb=options.bucket_cap_mb,
            **_buffer_arguments(model, options),
        )
        if options.communication_hook is not None:
            wrapped.register_comm_hook(None, _HOOKS[options.communication_hook])
            if run.is_main:
                logger.info(_GIVEN_UP, options.communication_hook)
        return wrapped

    def refuse_device(self, options: StrategyOptions, device: str) -> None:
        """Raise ConfigError for options without a meaning on this kind of device."""
        if isinstance(options, ReplicaOptions):
            _refuse_hook(options, device)

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """The whole model; gradients live in the exchange buffers, or lie beside them."""
        assert isinstance(options, ReplicaOptions)
        whole = whole_model_memory(model, whole_gradients=True)
        if options.gradient_as_bucket_view:
            return [whole]
        return [replace(whole, exchange=whole.gradients)]

    def unwrap(self, module: nn.Module) -> nn.Module:
        return unwrap(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        # With one process prepare leaves the model unwrapped, whatever the strategy.
        return module.no_sync() if isinstance(module, DistributedDataParallel) else nullcontext()

    def clip_norm(self, module: nn.Module, max_norm: float) -> torch.Tensor:
        # Gradients are already the mean over ranks, so that the norm is the same on every rank.
        return torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)


def _refuse_hook(options: ReplicaOptions, device: str) -> None:
    if options.communication_hook == "bf16" and device == "cpu":
        raise ConfigError(
            "communication_hook='bf16', and the model is trained on a CPU",
            cause="torch exchanges gradients in bf16 by NCCL only",
            hint="communication_hook=fp16, or leave it out",
        )


def _buffer_arguments(model: nn.Module, options: ReplicaOptions) -> dict[str, Any]:
    """Buffers start equal in any case; the option decides whether they stay equal."""
    if options.broadcast_buffers:
        return {}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters:
        return {"forward_sync_buffers": False}
    # Before torch 2.13 one argument covered both, so that the first broadcast is done here.
    for buffer in model.buffers():
        torch_dist.broadcast(buffer, src=0)
    return {"broadcast_buffers": False}
