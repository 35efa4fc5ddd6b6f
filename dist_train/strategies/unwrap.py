"""Find the user's own module inside its wrappers."""

from __future__ import annotations

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from dist_train.distributed.parameter_shards import is_sharded, sharded_modules
from dist_train.strategies.stages.pipeline_module import pipeline_of


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel and torch.compile, in whatever order they were applied."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
            continue
        # torch.compile's wrapper registers the original under this name.
        original = model._modules.get("_orig_mod")
        if original is None:
            return model
        model = original


def find_ddp(model: nn.Module) -> DistributedDataParallel | None:
    """The DDP layer of a wrapped model, if it has one."""
    while not isinstance(model, DistributedDataParallel):
        original = model._modules.get("_orig_mod")
        if original is None:
            return None
        model = original
    return model


def is_wrapped(model: nn.Module) -> bool:
    """Whether the model is inside DDP or DataParallel already, spread over ranks or cut into stages."""
    if sharded_modules(model) or pipeline_of(model) is not None:
        return True
    if any(is_sharded(parameter) for parameter in model.parameters()):
        return True
    while not isinstance(model, DistributedDataParallel | DataParallel):
        original = model._modules.get("_orig_mod")
        if original is None:
            return False
        model = original
    return True
