"""Refuse a model whose lazy layers have no shape yet: there is nothing to give to the other ranks."""

from __future__ import annotations

from torch import nn
from torch.nn.parameter import is_lazy

from dist_train.errors import ConfigError


def refuse_lazy_parameters(model: nn.Module) -> None:
    """Raise ConfigError for a model with parameters or buffers that get their shape in the first forward."""
    names = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise ConfigError(
            f"{type(model).__name__} has parameters without a shape: {names[0]}{more}",
            cause="lazy layers (nn.LazyLinear and its like) take it from the first batch, and ranks begin "
            "with rank 0's values, before it",
            hint="run one forward before dt.prepare: model(x) with a batch of the right shape under "
            "torch.no_grad(); for a config in the function that makes the model",
        )
