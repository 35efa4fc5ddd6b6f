"""Strategy `single`: one process, the model unwrapped."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.unwrap import unwrap


class SingleOptions(StrategyOptions):
    """No options."""


class Single:
    """For one rank only: no gradients are exchanged."""

    name = "single"
    Options: type[StrategyOptions] = SingleOptions
    averages = False
    one_process = True

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        if run.world_size != 1:
            raise ConfigError(
                f"strategy 'single' cannot train on {run.world_size} ranks",
                cause="it exchanges no gradients, so each rank would train a model of its own",
                hint="use strategy 'ddp'",
            )
        return model

    def unwrap(self, module: nn.Module) -> nn.Module:
        return unwrap(module)

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        return nullcontext()

    def clip_norm(self, module: nn.Module, max_norm: float) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)


STRATEGY = Single()
