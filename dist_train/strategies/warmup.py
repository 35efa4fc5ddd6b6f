"""Run one discarded step, so that a restarted run all-reduces its gradients in the same layout.

DDP groups gradients into buckets by the order of registration, and regroups them by the order in
which the first backward pass produced them. A ring adds each element in an order that depends on
its place in the bucket. So without this the first step after a restart adds in another order than
the same step of an undisturbed run, and from three ranks on its bits differ. After one discarded
backward pass the next forward regroups, before any gradient that counts.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.pytree import map_tensors
from dist_train.distributed.run import current
from dist_train.errors import ConfigError
from dist_train.strategies.discarded_step import attributes_kept, backward_hooks_off
from dist_train.strategies.unwrap import find_ddp

# Modules that have had their discarded step.
_warm: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def warm_up(wrapped: nn.Module, forward_backward: Callable[[], None]) -> bool:
    """Run a forward and backward pass whose only effect is DDP's regrouping.

    Collective. Buffers, gradients, the RNG state and the modules' own Python attributes are restored, and
    hooks of parameters' gradients and of modules' backward passes do not run. What forward changes outside
    of the module happens twice. Does nothing for a model without DDP, and for one that is warm already; the
    first training forward of a prepared model calls it if the program has not.

    Args:
        wrapped: what prepare returned.
        forward_backward: runs the model on a batch and calls backward() on the loss; with
            static_graph it is called twice.
    """
    ddp = find_ddp(wrapped)
    if ddp is None or ddp in _warm:
        return False
    _warm.add(ddp)
    run = current()
    uncounted = nullcontext() if run is None else run.gradients.discarded()
    with (
        state_kept(ddp),
        attributes_kept(ddp.module),
        backward_hooks_off(ddp),
        _synchronising(ddp),
        uncounted,
    ):
        forward_backward()
        if ddp.static_graph:
            # Its first pass only counts; the order is taken from the second.
            forward_backward()
    return True


class WarmUpOnFirstBatch:
    """Forward pre-hook of a prepared model: the first training batch is run twice; then it removes itself."""

    handle: Any = None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        if self.handle is not None:
            self.handle.remove()
        if module in _warm:
            return
        warm_up(module, lambda: _forward_backward(module, args, kwargs))


def _forward_backward(module: nn.Module, args: Any, kwargs: Any) -> None:
    # Copies: a model may change its input in place, and the graph that produced it must stay intact.
    args, kwargs = map_tensors(list(args), _copy), map_tensors(dict(kwargs), _copy)
    output = module(*args, **kwargs)
    starts = trained_tensors(output)
    if not starts:
        raise ConfigError("the model's output needs no gradient: nothing can be trained by it")
    # Autograd runs nodes in the reverse order of their creation, so any loss over the same outputs
    # produces the gradients in the same order as this sum.
    torch.autograd.backward(starts, [torch.ones_like(start) for start in starts])


def trained_tensors(value: Any) -> list[torch.Tensor]:
    """Every tensor in `value` from which a backward pass can start, attributes of objects included."""
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()

    def visit(item: Any) -> None:
        if isinstance(item, torch.Tensor):
            if item.requires_grad:
                found[id(item)] = item
            return
        if id(item) in seen or isinstance(item, nn.Module | type | str | bytes):
            return
        seen.add(id(item))
        if isinstance(item, Mapping):
            inside = list(item.values())
        elif isinstance(item, list | tuple | set | frozenset):
            inside = list(item)
        else:
            inside = []
        # A dataclass, a distribution, an output class of the model's own.
        for each in (*inside, *getattr(item, "__dict__", {}).values()):
            visit(each)

    visit(value)
    return list(found.values())


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
def state_kept(module: nn.Module) -> Iterator[None]:
    """Restore buffers, gradients and RNG state after forward or backward passes that do not count."""
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
        with _rngstate_kept():
            yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                owner._buffers[name] = buffer.copy_(value)
        for parameter, grad in grads:
            parameter.grad = grad
        # Under autocast the cache holds copies of weights that belong to the discarded graph.
        torch.clear_autocast_cache()


@contextmanager
def _rngstate_kept() -> Iterator[None]:
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        # The CPU's generator and the own GPU's: without devices it copies every visible one's, and warns.
        with torch.random.fork_rng(devices=_own_gpus()):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _own_gpus() -> list[int]:
    return [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
