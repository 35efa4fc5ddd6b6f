"""What every strategy is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict
from torch import nn

from dist_train.distributed.run import Run


class StrategyOptions(BaseModel):
    """Base of every strategy's options: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def is_for_one_process(strategy: object) -> bool:
    """Whether a strategy trains in one process alone (`one_process`, which may be left out)."""
    return bool(getattr(strategy, "one_process", False))


@runtime_checkable
class Strategy(Protocol):
    """One file of this folder with the constant STRATEGY is one strategy.

    `averages` promises that gradients come out as the mean over ranks: the weighting of uneven
    shares relies on it. A strategy for a single process alone says `one_process = True`: it refuses
    several ranks, and with one rank it is not replaced by `single`.
    """

    name: str
    Options: type[StrategyOptions]
    averages: bool

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        """The model, already on run.device, made to train on all ranks with rank 0's weights."""
        ...

    def unwrap(self, module: nn.Module) -> nn.Module:
        """The user's own module."""
        ...

    def no_sync(self, module: nn.Module) -> AbstractContextManager[None]:
        """Inside it, backward adds up gradients without exchanging them (accumulation)."""
        ...

    def clip_norm(self, module: nn.Module, max_norm: float) -> float:
        """Scale the exchanged gradients to a norm of at most max_norm; the norm before that."""
        ...
