"""Exact evaluation: every sample once, the same figures at every world size, nothing changed by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from dist_train.data.loader import AnyLoader
from dist_train.distributed.control_group import Control
from dist_train.distributed.seeding import rng_kept
from dist_train.trainer.records.metric_sums import Means, MetricSums, Reducer
from dist_train.trainer.step import Forward


def evaluate(
    forward: Forward,
    loader: AnyLoader,
    control: Control,
    alive: Callable[[], None] = lambda: None,
    counts: bool = True,
) -> Means:
    """Mean loss per unit and metrics over the whole data set; collective.

    The model's mode, its buffers and the RNG state are put back: one more evaluation changes no later
    bit of the training.

    Args:
        alive: called after every batch: an evaluation may take long.
        counts: this rank's sums are added up; another one of the same data says False.
    """
    metric_sums = MetricSums()
    # The data set's own randomness is keyed by epoch: always the same one, also after a restart.
    loader.seek(0, 0)
    with rng_kept(), _evaluating(forward.model), torch.no_grad():
        for micro_batch in loader.micro_batches():
            units = forward.task.units(micro_batch.batch) if micro_batch.count else 0
            metric_sums.add(forward(micro_batch), units, counts=micro_batch.count > 0)
            alive()
    return Reducer(control, counts).means(metric_sums)


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
