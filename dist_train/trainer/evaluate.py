"""Exact evaluation: every sample once, the same figures at every world size, nothing changed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dist_train.data.exact import ExactLoader
from dist_train.distributed.control import Control
from dist_train.trainer.rng import rng_kept
from dist_train.trainer.step import Forward
from dist_train.trainer.tally import Means, Reducer, Tally


def evaluate(
    forward: Forward, loader: ExactLoader, control: Control, alive: Callable[[], None] = lambda: None
) -> Means:
    """Mean loss per unit and metrics over the whole data set; collective.

    The model goes back to the mode it was in, its buffers and every random stream to their values:
    one more evaluation changes no later bit of the training.

    Args:
        alive: called after every batch: an evaluation may take long.
    """
    tally = Tally()
    # The data set's own randomness is keyed by epoch: always the same one, also after a restart.
    loader.seek(0, 0)
    with rng_kept(), _evaluating(forward.model), torch.no_grad():
        for share in loader.shares():
            units = forward.task.units(share.batch) if share.count else 0
            tally.add(forward(share), units, counts=share.count > 0)
            alive()
    return Reducer(control).means(tally)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = {name: module.training for name, module in model.named_modules()}
    # A wrapped model may bring rank 0's buffers to the others before a forward pass.
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.eval()
    try:
        yield
    finally:
        for name, module in model.named_modules():
            module.training = training[name]
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
