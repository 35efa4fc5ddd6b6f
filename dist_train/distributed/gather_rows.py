"""Gather the rows of all ranks' tensors, which may be unequally many, in rank order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as torch_dist

from dist_train.distributed.control_group import Control, JsonValue
from dist_train.distributed.keyed_exchange import KeyedExchange
from dist_train.errors import ConfigError


def gather_rows(
    control: Control,
    exchange: KeyedExchange | None,
    values: torch.Tensor | Sequence[torch.Tensor],
    device: torch.device,
    counts: bool = True,
) -> torch.Tensor:
    """`Run.gather`, which has the arguments' meaning. `device` is for a rank that gave nothing.

    Without `counts` another rank has the same rows, and these are left out.
    """
    own = _rows(values)
    if own is not None and not counts:
        own = own[:0]
    facts: JsonValue = None
    if own is not None:
        facts = [str(own.dtype).removeprefix("torch."), list(own.shape[1:]), len(own)]
    answer = (
        _layout([facts]) if exchange is None else exchange.exchange("gather", facts, _layout, "run.gather")
    )
    dtype_name, shape, lengths = cast("tuple[str, list[int], list[int]]", answer)
    dtype = getattr(torch, dtype_name)
    if own is None:
        own = torch.empty(0, *shape, dtype=dtype, device=device)
    if control.group is None:
        return own
    parts = _all_gather(own.cpu(), control, max(lengths))
    rows = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    return torch.cat(rows).to(own.device)


def _rows(values: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor | None:
    if isinstance(values, torch.Tensor):
        one = values.detach()
        return one.reshape(1) if one.ndim == 0 else one
    return torch.cat([value.detach() for value in values]) if len(values) else None


def _layout(ranks: list[JsonValue]) -> JsonValue:
    """[dtype, shape of a row, rows of each rank]; the same on all ranks that have rows."""
    rows = cast("list[list[Any] | None]", ranks)
    given = {rank: row for rank, row in enumerate(rows) if row is not None}
    if not given:
        raise ConfigError("run.gather: no rank has a tensor", hint="gather after the evaluation's batches")
    first, like = next(iter(given.items()))
    for rank, row in given.items():
        if row[:2] != like[:2]:
            raise ConfigError(
                f"run.gather got {row[0]} rows of shape {row[1]} on rank {rank}, and {like[0]} rows of shape "
                f"{like[1]} on rank {first}",
                cause="only the first dimension may differ between ranks",
                hint="pad the other dimensions to one size, or gather one value per sample",
            )
    return [*like[:2], [0 if row is None else row[2] for row in rows]]


def _all_gather(own: torch.Tensor, control: Control, longest: int) -> list[torch.Tensor]:
    padded = own.new_zeros(longest, *own.shape[1:])
    padded[: len(own)] = own
    # As bytes: gloo does not know every dtype.
    sent = padded.reshape(-1).view(torch.uint8)
    boxes = [torch.empty_like(sent) for _ in range(control.world_size)]
    if sent.numel():
        torch_dist.all_gather(boxes, sent, group=control.group)
    return [box.view(own.dtype).reshape(padded.shape) for box in boxes]
