"""What a rank holds of a model under a strategy, from shapes alone: no process group, no values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dist_train.errors import ConfigError
from dist_train.strategies.base import StrategyOptions


class NotForThisModel(ConfigError):
    """A strategy that works only with models that are made for it: others need no note about it."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank; for the optimizer's state the shapes of what it holds of each parameter.

    Args:
        rank: whose; others hold as much, or less.
        shapes: name of each parameter (tied ones once) -> shape of this rank's part.
        parameters: the parts, padding included.
        gradients: of the parts, after the backward pass.
        gathered: parameters that are whole for a while, at most.
        exchange: buffers of the gradients' exchange, at most.
        whole_gradients: gradients lie in memory from the start of a backward pass to the next step.
        on_host: parts, their gradients and the optimizer's state lie in CPU memory.
        compute_dtype: forward and backward pass compute in it; None: as the parameters are.
        notes: what the numbers stand for.
    """

    rank: int
    shapes: Mapping[str, tuple[int, ...]]
    parameters: int
    gradients: int
    gathered: int = 0
    exchange: int = 0
    whole_gradients: bool = False
    on_host: bool = False
    compute_dtype: str | None = None
    notes: tuple[str, ...] = ()


def memory_of(
    strategy: object, options: StrategyOptions, model: nn.Module, world_size: int, accumulate: int
) -> list[RankMemory]:
    """Ask a strategy for the memory of its ranks: `memory`, which may be left out.

    Without it every rank holds the whole model.

    Args:
        model: plain, on any device (meta will do).
        accumulate: micro-batches per optimizer step.

    Returns:
        One for each kind of rank, the one that holds most first.

    Raises:
        ConfigError: the model or the ranks do not fit the strategy.
    """
    chosen = getattr(strategy, "memory", None)
    if chosen is None:
        return [whole_model_memory(model)]
    found = chosen(options, model, world_size, accumulate)
    if not isinstance(found, list) or not found or not all(isinstance(one, RankMemory) for one in found):
        raise ConfigError(
            f"`memory` of {type(strategy).__name__} returns {found!r}",
            hint="return a list of dist_train.strategies.rank_memory.RankMemory, the largest first",
        )
    return found


def computes_with_parts(strategy: object) -> bool:
    """Whether ranks compute with parts of layers."""
    return hasattr(strategy, "as_on_a_rank")


def as_on_a_rank(
    strategy: object, options: StrategyOptions, model: nn.Module, world_size: int
) -> AbstractContextManager[None]:
    """Let a model, on meta, be what one rank computes with: `as_on_a_rank`, which may be left out.

    Without it every rank computes with whole layers.

    Raises:
        ConfigError: the model does not fit the strategy.
    """
    chosen = getattr(strategy, "as_on_a_rank", None)
    return nullcontext() if chosen is None else chosen(options, model, world_size)


def candidates_of(strategy: object, world_size: int) -> list[dict[str, Any]]:
    """Options of the meshes that are worth a look at this size: `candidates`, which may be left out."""
    chosen = getattr(strategy, "candidates", None)
    return [{}] if chosen is None else list(chosen(world_size))


def whole_model_memory(model: nn.Module, **changes: Any) -> RankMemory:
    """Every parameter and every gradient, whole; `changes` are further fields."""
    parameters = dict(model.named_parameters())
    return RankMemory(
        rank=0,
        shapes={name: tuple(parameter.shape) for name, parameter in parameters.items()},
        parameters=bytes_of(parameters.values()),
        gradients=bytes_of(p for p in parameters.values() if p.requires_grad),
        **changes,
    )


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Elements times their size; views count as what they show."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
