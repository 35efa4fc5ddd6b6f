"""One throw-away step, so that a restarted run exchanges its gradients in the same layout.

DDP groups gradients into buckets by the order of registration, and regroups them by the order in
which the first backward pass produced them. A ring adds each element in an order that depends on
its place in the bucket. So without this the first step after a restart adds in another order than
the same step of an undisturbed run, and from three ranks on its bits differ. After one thrown-away
backward pass the next forward regroups, before any gradient that counts.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.nested import map_tensors
from dist_train.errors import ConfigError
from dist_train.strategies.outputs import hidden_tensors, trained_tensors
from dist_train.strategies.unwrap import find_ddp, unwrap

# Modules that have had their throw-away step.
_warm: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def warm_up(wrapped: nn.Module, forward_backward: Callable[[], None]) -> bool:
    """Run a forward and backward pass that leaves no trace but DDP's regrouping.

    Collective. Buffers, gradients and all random generators are put back. Does nothing for a model
    without DDP, and for one that has had it; the first training forward of a prepared model does it
    where nobody called this before.

    Args:
        wrapped: what prepare returned.
        forward_backward: runs the model on a batch and calls backward() on the loss; with
            static_graph it is called twice.
    """
    ddp = find_ddp(wrapped)
    if ddp is None or ddp in _warm:
        return False
    _warm.add(ddp)
    with _state_kept(ddp), _synchronising(ddp):
        forward_backward()
        if ddp.static_graph:
            # Its first pass only counts; the order is taken from the second.
            forward_backward()
    return True


class WarmUpOnFirstBatch:
    """Forward pre-hook of a prepared model: the first training batch is run twice."""

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if module in _warm or not module.training or not torch.is_grad_enabled():
            return
        warm_up(module, lambda: _forward_backward(module, args, kwargs))


def _forward_backward(module: nn.Module, args: Any, kwargs: Any) -> None:
    # Copies: a model may change its input in place, and a graph in front of it must stay whole.
    args, kwargs = map_tensors(list(args), _copy), map_tensors(dict(kwargs), _copy)
    output = module(*args, **kwargs)
    for name in hidden_tensors(output):
        raise ConfigError(
            f"{type(unwrap(module)).__name__} returns a {name} that hides tensors",
            cause="the gradient of an uneven share cannot be weighted inside it",
            mend="return tensors, tuples, lists, dicts or dataclasses",
        )
    starts = trained_tensors(output)
    if not starts:
        raise ConfigError("the model's output needs no gradient: nothing can be trained by it")
    # Autograd runs nodes in the reverse order of their creation, so any loss over the same outputs
    # produces the gradients in the same order as this sum.
    torch.autograd.backward(starts, [torch.ones_like(start) for start in starts])


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextmanager
def _synchronising(ddp: DistributedDataParallel) -> Iterator[None]:
    """Exchange gradients even inside no_sync(), where the first micro-batch of a step runs."""
    before = ddp.require_backward_grad_sync
    ddp.require_backward_grad_sync = True
    try:
        yield
    finally:
        ddp.require_backward_grad_sync = before


@contextmanager
def _state_kept(module: nn.Module) -> Iterator[None]:
    buffers = [
        (owner, name, buffer, buffer.detach().clone())
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    grads = [(parameter, parameter.grad) for parameter in module.parameters()]
    for parameter, _ in grads:
        parameter.grad = None
    try:
        with _generators_kept():
            yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                owner._buffers[name] = buffer.copy_(value)
        for parameter, grad in grads:
            parameter.grad = grad
        # Under autocast the cache holds copies of weights with the thrown-away graph on them.
        torch.clear_autocast_cache()


@contextmanager
def _generators_kept() -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():  # torch's CPU generator and every GPU's
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
