"""Measure how long a backward pass waits for the other ranks' gradients, on a CPU.

DDP starts the exchange of each bucket while the backward pass goes on, and waits for all of them in a
callback at the pass's end. One callback before and one after it tell how long: that is what the exchange
adds to the step. On a GPU that callback returns at once, and the device waits: there it is not known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import Variable
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

from dist_train.rundir.times.span_clock import COMMUNICATION, COMPUTE, span_clock


class ExchangeTime:
    """Counts that time as communication.

    Args:
        on_cpu: whether the gradients are there.

    Attributes:
        measures: whether there is a module whose exchange can be measured.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self.measures = False

    def track(self, module: Module, alone: bool) -> None:
        """Measure this module's exchange from now on, where that is possible."""
        if alone:
            span_clock().know(COMMUNICATION)  # there is none
        elif self._on_cpu and isinstance(module, DistributedDataParallel):
            self.measures = True
            span_clock().know(COMMUNICATION)

    def backward_seen(self) -> None:
        """A gradient is about to be added; DDP has not queued its own callback in this backward pass yet."""
        times = span_clock()
        if self.measures and times.counts and times.part == COMPUTE:
            Variable._execution_engine.queue_callback(_begin)


def measure_exchange(module: Module, on_cpu: bool, alone: bool) -> None:
    """Measure the exchange of a wrapped module that is not a run's prepared one.

    The caller of each backward pass ends it, by `end_wait(COMMUNICATION)`: that costs less than a callback.
    """
    measured = ExchangeTime(on_cpu)
    measured.track(module, alone)
    times = span_clock()
    if not (measured.measures and times.counts):
        return
    queue = Variable._execution_engine.queue_callback
    last = [parameter for parameter in module.parameters() if parameter.requires_grad][-1:]
    add_hook: Any = torch.Tensor.register_post_accumulate_grad_hook

    def begin() -> None:
        times.switch(COMMUNICATION)

    def gradient_added(parameter: torch.Tensor) -> None:
        queue(begin)

    for parameter in last:
        add_hook(parameter, gradient_added)


def _begin() -> None:
    # Callbacks that a callback adds come after those that are there: after DDP's.
    Variable._execution_engine.queue_callback(_end)
    span_clock().switch(COMMUNICATION)


def _end() -> None:
    span_clock().end_wait(COMMUNICATION)
