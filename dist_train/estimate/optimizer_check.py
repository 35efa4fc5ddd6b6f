"""Can the config's optimizer step what a strategy gives it? A step of small parameters tells."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from dist_train.config.schema import RunConfig
from dist_train.errors import ConfigError, DistTrainError
from dist_train.estimate.shape_model import other_parameters
from dist_train.strategies.base import spreads_parameters
from dist_train.strategies.strategy_fit import FittedStrategy
from dist_train.trainer.component_factory import make
from dist_train.trainer.parameter_groups import grouped

# Rows of a small parameter: each of two ranks has one.
_ROWS = 2
Held = Callable[[nn.Parameter], torch.Tensor]


def refuse_optimizer(config: RunConfig, fitted: FittedStrategy, model: nn.Module) -> None:
    """Let the config's optimizer step parameters that are spread over ranks, if the strategy spreads them.

    One that does not step plain ones here either (it may need a GPU, or a closure) is not judged.

    Args:
        model: on meta; its names and classes decide about parameter groups.

    Raises:
        ConfigError: it cannot.
    """
    if not spreads_parameters(fitted.strategy, fitted.options):
        return
    with _two_pretended_ranks():
        why = _why_not(config, model, _spread)
    if why is None or _why_not(config, model, _plain) is not None:
        return
    raise ConfigError(
        f"strategy {fitted.strategy.name}: the optimizer {config.optimizer.target} cannot step its "
        "parameters, DTensors",
        cause=why,
        hint="leave optimizer.args.fused out; torch's fused AdamW and Adam step DTensors"
        if config.optimizer.args.get("fused")
        else "SGD, Adam, AdamW and Adagrad of torch.optim can; or strategy ddp, with whole parameters",
    )


def _why_not(config: RunConfig, model: nn.Module, held: Held) -> str | None:
    parameters = {
        name: nn.Parameter(held(own), requires_grad=own.requires_grad)
        for name, own in model.named_parameters()
    }
    try:
        with other_parameters(model, parameters):
            chosen = grouped(model, config.parameter_groups)
            optimizer = cast(Optimizer, make(config.optimizer, "optimizer", chosen))
        for group in optimizer.param_groups:
            # One with several dimensions and one with a single one: a large model has thousands.
            some = {min(2, p.dim()): p for p in group["params"] if p.requires_grad}
            for parameter in some.values():
                parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    except DistTrainError:
        raise
    except Exception as error:  # whatever torch or the optimizer says
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return None


def _plain(own: nn.Parameter) -> torch.Tensor:
    return torch.ones((_ROWS,) * max(1, own.dim()), dtype=own.dtype)


def _spread(own: nn.Parameter) -> torch.Tensor:
    mesh = init_device_mesh("cpu", (_ROWS,))
    return DTensor.from_local(_plain(own)[:1], mesh, [Shard(0)], run_check=False)


@contextmanager
def _two_pretended_ranks() -> Iterator[None]:
    """Torch's process group that exchanges nothing: no store, no network."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch_dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=_ROWS)
    try:
        yield
    finally:
        torch_dist.destroy_process_group()
