"""Shard a model's parameters, gradients and optimizer state by torch's fully_shard (FSDP2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Literal, cast

import torch
import torch.distributed as torch_dist
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from dist_train.distributed.parameter_shards import clip_gradients, reshard_without_backward, sharded_modules
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions, place_of
from dist_train.strategies.fully_sharded.sharded_memory import ShardPolicy, sharded_memory
from dist_train.strategies.fully_sharded.sharding_units import Unit, choose_units, describe_units
from dist_train.strategies.rank_memory import RankMemory
from dist_train.strategies.rank_zero_weights import refuse_unlike_models, take_rank_zero_weights
from dist_train.strategies.unwrap import unwrap

logger = logging.getLogger(__name__)

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Precision = Literal["fp32", "bf16"]


class ShardingOptions(StrategyOptions):
    """How a model is cut into units, and when their parameters are whole."""

    units: tuple[str, ...] | None = Field(
        None,
        description="classes or patterns of module names (blocks.*) that are gathered by themselves; "
        "None: the members of each ModuleList",
    )
    unit_parameters: int | None = Field(
        None, ge=1, description="in place of units: modules with at least so many parameters"
    )
    reshard_after_forward: bool = Field(
        True, description="free a unit's parameters after its forward, and gather them again for the backward"
    )
    param_dtype: Precision | None = Field(
        None, description="compute in it; the shards keep their dtype; None: as the parameters are"
    )
    reduce_dtype: Precision | None = Field(None, description="add gradients up in it; None: param_dtype")
    cpu_offload: bool = Field(False, description="shards and optimizer state in CPU memory")
    broadcast_buffers: bool = Field(True, description="rank 0's buffers on all ranks before each forward")

    @field_validator("unit_parameters")
    @classmethod
    def _one_kind_of_units(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("units") is not None:
            raise ValueError(f"units={list(info.data['units'])} says what a unit is too: give one of them")
        return value


class ShardedStrategy:
    """What the strategies have in common that spread every parameter over ranks."""

    averages = True
    # `wrap` takes the model where it was built: whole, it may not fit on one device.
    places_model = True

    def spreads_parameters(self, options: StrategyOptions) -> bool:
        """All of them, always."""
        return True

    def unwrap(self, module: nn.Module) -> nn.Module:
        return unwrap(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return _not_reduced(module) if next(iter(sharded_modules(module)), None) else nullcontext()

    def clip_norm(self, module: nn.Module, max_norm: float) -> Tensor:
        return clip_gradients(module.parameters(), max_norm)

    def memory(
        self, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
    ) -> list[RankMemory]:
        """What the first and the last rank of a copy hold, by torch's chunks."""
        assert isinstance(options, ShardingOptions)
        _, shard = place_of(self, options, 0, world_size).mesh[-1]
        return self.sharded_memory(options, model, shard, accumulate)

    def sharded_memory(
        self, options: ShardingOptions, model: nn.Module, shard: int, accumulate: int
    ) -> list[RankMemory]:
        """The same for `shard` ranks that hold one copy together."""
        refuse_unshardable(model)
        policy = ShardPolicy(
            options.reshard_after_forward,
            None if options.param_dtype is None else _DTYPES[options.param_dtype],
            None if options.reduce_dtype is None else _DTYPES[options.reduce_dtype],
            options.cpu_offload,
        )
        units = choose_units(model, options.units, options.unit_parameters)
        return sharded_memory(model, units, shard, policy, accumulate)

    def refuse_device(self, options: StrategyOptions, device: str) -> None:
        """Raise ConfigError for options without a meaning on this kind of device."""
        if isinstance(options, ShardingOptions):
            _refuse_offload_on_cpu(options, device)


def shard_model(
    model: nn.Module, run: Run, options: ShardingOptions, mesh: Iterable[tuple[str, int]]
) -> nn.Module:
    """Shard a model in place, from rank 0's weights (collective); return it.

    Args:
        model: plain, on any device.
        mesh: names and sizes of its dimensions: the last one shards, one before it replicates.

    Raises:
        ConfigError: it cannot be sharded so; before anything of it is changed.
    """
    names, sizes = zip(*mesh, strict=True)
    units = fitting_units(model, run, options)
    take_rank_zero_weights(model, run)
    device_mesh = init_device_mesh(run.device.type, sizes, mesh_dim_names=names)
    return shard_units(model, units, run, options, device_mesh)


def fitting_units(model: nn.Module, run: Run, options: ShardingOptions) -> list[Unit]:
    """Choose the units, and check everything before anything of the model is changed (collective).

    Raises:
        ConfigError: the model, the options and the device do not fit together.
    """
    _refuse_offload_on_cpu(options, run.device.type)
    # Not what torch.compile has put around it: names of modules are those of the program.
    plain = unwrap(model)
    refuse_unshardable(plain)
    units = choose_units(plain, options.units, options.unit_parameters)
    refuse_unlike_models(model, run.control)
    return units


def shard_units(
    model: nn.Module,
    units: Sequence[Unit],
    run: Run,
    options: ShardingOptions,
    device_mesh: DeviceMesh,
    before: Callable[[nn.Module], None] = lambda module: None,
) -> nn.Module:
    """Shard each unit and then the rest, in place; return the model.

    Args:
        units: by `fitting_units`.
        device_mesh: over which parameters are spread.
        before: called with each unit, and with the model at last, before it is sharded.
    """
    chosen = describe_units(units)  # before torch gives them classes of its own
    arguments: dict[str, Any] = {
        "mesh": device_mesh,
        "mp_policy": _precision(options),
        "offload_policy": _offload(options),
    }
    inner = {**arguments, "mp_policy": replace(arguments["mp_policy"], output_dtype=None)}
    for unit in units:
        before(unit.module)
        fully_shard(unit.module, reshard_after_forward=options.reshard_after_forward, **inner)
    before(model)
    # torch keeps the rest whole between forward and backward, which come one after the other.
    fully_shard(model, reshard_after_forward=None if options.reshard_after_forward else False, **arguments)
    for buffer in model.buffers():
        buffer.data = buffer.data.to(run.device)
    # A parameter may take no part in a step on some ranks: all of them must reduce equally much.
    cast("FSDPModule", model).set_reduce_scatter_unused_params(True)
    reshard_without_backward(model)
    if options.broadcast_buffers and run.world_size > 1:
        model.register_forward_pre_hook(_take_buffers)
    if run.is_main:
        names = device_mesh.mesh_dim_names or ()
        shown = " x ".join(f"{name} {size}" for name, size in zip(names, device_mesh.shape, strict=True))
        logger.info("sharded over %s; units: %s", shown, chosen)
    return model


def _refuse_offload_on_cpu(options: ShardingOptions, device: str) -> None:
    if options.cpu_offload and device == "cpu":
        raise ConfigError(
            "cpu_offload=True, and the model is trained on a CPU", hint="leave it out: everything is there"
        )


def refuse_unshardable(model: nn.Module) -> None:
    """Raise ConfigError for a model that fully_shard cannot spread over ranks."""
    name = type(model).__name__
    parameters = dict(model.named_parameters())
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(
            f"{name} has no parameter that requires a gradient",
            hint="use the model as it is: nothing of it is trained",
        )
    for key, parameter in parameters.items():
        if parameter.dim() == 0:
            raise ConfigError(
                f"'{key}' of {name} is a single number, which cannot be sharded",
                hint="give it the shape (1,): torch.nn.Parameter(torch.ones(1))",
            )
        if not parameter.is_contiguous():
            raise ConfigError(
                f"'{key}' of {name} is not contiguous, with the strides {parameter.stride()}",
                cause="its rows are spread over the ranks",
                hint="leave channels_last out: model.to(memory_format=torch.contiguous_format)",
            )


def _precision(options: ShardingOptions) -> MixedPrecisionPolicy:
    compute = None if options.param_dtype is None else _DTYPES[options.param_dtype]
    return MixedPrecisionPolicy(
        param_dtype=compute,
        reduce_dtype=None if options.reduce_dtype is None else _DTYPES[options.reduce_dtype],
        # The loss is computed from what the model returns; between units nothing is converted.
        output_dtype=None if compute is None else torch.float32,
    )


def _offload(options: ShardingOptions) -> OffloadPolicy:
    return CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()


@contextmanager
def _not_reduced(module: nn.Module) -> Iterator[None]:
    """Gradients are added up on each rank, whole; the first backward pass after it reduces them."""
    parts = sharded_modules(module)
    for part in parts:
        part.set_requires_gradient_sync(False, recurse=False)
        part.set_is_last_backward(False)
    try:
        yield
    finally:
        for part in parts:
            part.set_requires_gradient_sync(True, recurse=False)
            part.set_is_last_backward(True)


def _take_buffers(module: nn.Module, args: Any) -> None:
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for buffer in module.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_dtype.values():
        flat = torch.cat([buffer.detach().reshape(-1) for buffer in buffers])
        torch_dist.broadcast(flat, src=0)
        values = torch.split(flat, [buffer.numel() for buffer in buffers])
        for buffer, value in zip(buffers, values, strict=True):
            # As DDP: the graph of a forward pass before, whose backward pass is still to come, stays valid.
            buffer.data.copy_(value.view_as(buffer))
