"""Give every rank rank 0's parameters and buffers, after a check that the models are alike."""

from __future__ import annotations

import xxhash
from torch import Tensor, nn
from torch.distributed import broadcast

from dist_train.distributed.control_group import Control
from dist_train.distributed.run import Run
from dist_train.errors import ConfigError
from dist_train.rundir.name_ranks import name_ranks


def refuse_unlike_models(model: nn.Module, control: Control) -> None:
    """Raise ConfigError on all ranks if their models differ in a name, shape or dtype (collective).

    Their first exchange would wait for ever, or add up what does not belong together.
    """
    mine = [f"{name} {_kind(tensor)}" for name, tensor in _named(model)]
    digest = xxhash.xxh3_128_hexdigest("\n".join(mine).encode())
    digests = control.all_gather(digest)
    if len(set(map(str, digests))) == 1:
        return
    rows = [row if isinstance(row, list) else [] for row in control.all_gather([*mine])]
    odd = [rank for rank, row in enumerate(rows) if row != rows[0]]
    first = next(
        (pair for pair in zip(rows[0], rows[odd[0]], strict=False) if pair[0] != pair[1]),
        (f"{len(rows[0])} tensors", f"{len(rows[odd[0]])}"),
    )
    raise ConfigError(
        f"the ranks have unlike models: {first[0]} on rank 0, {first[1]} on {name_ranks(odd[:1])}",
        cause="a model is built from what is the same on all ranks: the config, and not the rank or the data",
    )


def _named(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} {'trained' if tensor.requires_grad else 'fixed'}"


def take_rank_zero_weights(model: nn.Module, run: Run) -> None:
    """Copy rank 0's parameters and buffers to all ranks, one by one, wherever they lie (collective)."""
    for _, tensor in {id(tensor): (name, tensor) for name, tensor in _named(model)}.values():
        value = tensor.detach()
        # A model that is still in CPU memory does not pass through the GPU.
        group = run.control.group if value.device.type == "cpu" else None
        dense = value.contiguous()
        broadcast(dense, src=0, group=group)
        if dense is not value:
            value.copy_(dense)
