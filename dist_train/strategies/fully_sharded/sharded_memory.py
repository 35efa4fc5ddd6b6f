"""What a rank holds of a model that fully_shard spreads over ranks: torch's own chunks, in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from dist_train.strategies.fully_sharded.sharding_units import Unit
from dist_train.strategies.rank_memory import RankMemory


@dataclass(frozen=True)
class ShardPolicy:
    """The options of a sharded strategy that decide about memory; dtypes None: as the parameters are."""

    reshard_after_forward: bool = True
    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    cpu_offload: bool = False


@dataclass(frozen=True)
class _Sizes:
    """One unit's bytes on each rank: whole in the dtype of computing, and what is reduced."""

    whole: int
    whole_gradients: int
    reduce_input: int


def sharded_memory(
    model: nn.Module, units: Sequence[Unit], shard: int, policy: ShardPolicy, accumulate: int
) -> list[RankMemory]:
    """Return the memory of the first and of the last rank of a copy.

    A parameter of n rows is cut into parts of ceil(n / shard) rows. Every rank has memory for so many, also
    the last ones, which may hold fewer, or none.

    Args:
        units: gathered by themselves, the innermost first; the rest of the model is one more.
        shard: ranks that hold one copy together.
        accumulate: micro-batches per step: gradients are added up whole until the last of them.
    """
    parameters = dict(model.named_parameters())
    padded = {name: _part(p.shape, shard, 0) for name, p in parameters.items()}
    stored = sum(prod(padded[name]) * p.element_size() for name, p in parameters.items())
    reduced = sum(prod(padded[name]) * p.element_size() for name, p in parameters.items() if p.requires_grad)
    *inner, rest = [_sizes(group, shard, policy) for group in _grouped(model, units)]
    gathered, note = _gathered(inner, rest, policy)
    exchange = max((one.whole_gradients + one.reduce_input for one in (*inner, rest)), default=0)
    notes = [note]
    if accumulate > 1:
        exchange += sum(one.whole_gradients for one in (*inner, rest))
        notes.append(f"gradients are added up whole over {accumulate} micro-batches")
    ranks = [0] if shard == 1 else [0, shard - 1]
    return [
        RankMemory(
            rank=rank,
            shapes={name: _part(p.shape, shard, rank) for name, p in parameters.items()},
            parameters=stored,
            gradients=reduced,
            gathered=gathered,
            exchange=exchange,
            whole_gradients=True,
            on_host=policy.cpu_offload,
            compute_dtype=None if policy.param_dtype is None else str(policy.param_dtype).split(".")[1],
            notes=tuple(notes),
        )
        for rank in ranks
    ]


def _part(shape: Sequence[int], shard: int, rank: int) -> tuple[int, ...]:
    rows = -(-shape[0] // shard)
    return (max(0, min(shape[0] - rank * rows, rows)), *shape[1:])


def _grouped(model: nn.Module, units: Sequence[Unit]) -> list[list[nn.Parameter]]:
    """The parameters of each unit, without those of units inside of it; the rest of the model last."""
    taken: set[int] = set()
    groups = []
    for module in (*(unit.module for unit in units), model):
        group = [parameter for parameter in module.parameters() if id(parameter) not in taken]
        taken.update(map(id, group))
        groups.append(group)
    return groups


def _sizes(parameters: Iterable[nn.Parameter], shard: int, policy: ShardPolicy) -> _Sizes:
    whole = gradients = reduce_input = 0
    for parameter in parameters:
        computed = policy.param_dtype or parameter.dtype
        padded = prod(_part(parameter.shape, shard, 0)) * shard
        whole += padded * computed.itemsize
        if parameter.requires_grad:
            gradients += parameter.numel() * computed.itemsize
            reduce_input += padded * (policy.reduce_dtype or computed).itemsize
    return _Sizes(whole, gradients, reduce_input)


def _gathered(inner: Sequence[_Sizes], rest: _Sizes, policy: ShardPolicy) -> tuple[int, str]:
    largest = max((one.whole for one in inner), default=0)
    if not inner:
        return 2 * rest.whole, "gathered: the whole model, and the buffer that it is copied from"
    if not policy.reshard_after_forward:
        everything = rest.whole + sum(one.whole for one in inner)
        return everything + largest, "gathered: the whole model, and the largest unit's buffer"
    return (
        rest.whole + 2 * largest,
        "gathered: the rest, and the largest unit twice (the next is gathered while one computes)",
    )
