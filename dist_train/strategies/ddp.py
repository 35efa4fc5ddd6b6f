"""Strategy `ddp`: every rank holds the whole model; gradients are averaged during the backward pass."""

from __future__ import annotations

from torch import nn

from dist_train.distributed.run import Run
from dist_train.strategies.base import StrategyOptions
from dist_train.strategies.replicas.exchanged_model import ReplicaOptions, ReplicatedStrategy

# Without options it works at any size, so that a launch need not load torch to check it.
FITS_ANY_SIZE = True


class DdpOptions(ReplicaOptions):
    """DistributedDataParallel's options of the same names."""


class Ddp(ReplicatedStrategy):
    """Torch's DistributedDataParallel."""

    name = "ddp"
    Options: type[StrategyOptions] = DdpOptions

    def wrap(self, model: nn.Module, run: Run, options: StrategyOptions) -> nn.Module:
        if not isinstance(options, DdpOptions):
            raise TypeError(f"ddp takes DdpOptions, not {type(options).__name__}")
        return self.exchanged(model, run, options, run.device if run.device.type == "cuda" else None)


STRATEGY = Ddp()
