"""dt.no_sync and dt.clip_grad_norm_: what a loop does to a prepared model, whatever its strategy."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager

from torch import Tensor, nn

from dist_train.errors import UsageError
from dist_train.strategies.base import Strategy

# Weak: it lives as long as the program keeps the model.
_strategies: weakref.WeakKeyDictionary[nn.Module, Strategy] = weakref.WeakKeyDictionary()


def remember_strategy(model: nn.Module, strategy: Strategy) -> None:
    """Note by which strategy a model was prepared."""
    _strategies[model] = strategy


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """A context in which backward adds gradients up without exchanging them, for all but a step's last batch.

    Forward and backward both belong inside. With fsdp and hsdp the gradients that are not exchanged are
    whole: they take the memory of the model.

    Args:
        model: what dt.prepare returned.

    Raises:
        UsageError: another model.
    """
    return strategy_of(model, "dt.no_sync").no_sync(model)


def clip_grad_norm_(model: nn.Module, max_norm: float) -> Tensor | float:
    """Scale the gradients of a prepared model to a norm of at most max_norm; return the norm before that.

    The norm is that of the whole gradient over all ranks, equal on all of them, each element counted once:
    also where parameters are spread over ranks. Collective; after backward and before the optimizer's step.

    Args:
        model: what dt.prepare returned.
        max_norm: of the 2-norm.

    Raises:
        UsageError: another model.
    """
    return strategy_of(model, "dt.clip_grad_norm_").clip_norm(model, max_norm)


def strategy_of(model: nn.Module, what: str) -> Strategy:
    """The strategy by which a model was prepared.

    Args:
        what: the call, for the error.

    Raises:
        UsageError: it is not what dt.prepare has returned.
    """
    found = _strategies.get(model)
    if found is None:
        raise UsageError(
            f"{what}: this {type(model).__name__} is not what dt.prepare has returned",
            hint="model = dt.prepare(model), and give it that model, not a part of it or what is inside",
        )
    return found
