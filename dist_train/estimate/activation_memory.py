"""Activations of one micro-batch: the task's loss and its backward pass run on tensors without values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from dist_train.distributed.pytree import map_tensors
from dist_train.estimate.live_storage import LiveStorage
from dist_train.trainer.task import Task

_DROPOUT_AT = 4


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of one micro-batch, without parameters and buffers.

    Args:
        saved: what the forward pass keeps for the backward pass, each storage once.
        peak: the most that is there at once in both, without the parameters' gradients.
        with_gradients: the same with them, as they are made.
    """

    saved: int
    peak: int
    with_gradients: int


def activation_memory(
    model: nn.Module,
    task: Task,
    batch: Any,
    *,
    autocast: bool,
    compute_dtype: str | None,
    fused_attention: bool,
) -> ActivationMemory:
    """Measure with tensors that have shapes and dtypes, and no values.

    Args:
        model: on meta.
        batch: as the loader gives it, on the CPU.
        autocast: the forward pass in bf16 by autocast.
        compute_dtype: parameters and inputs in this dtype, outputs in float32; None: as they are.
        fused_attention: count attention with dropout as GPUs' kernels keep it, and not as the CPU does.

    Raises:
        Exception: whatever the model or the task raises where it needs a value.
    """
    mode = FakeTensorMode()
    dtype = None if compute_dtype is None else getattr(torch, compute_dtype)

    def without_values(tensor: Tensor) -> Tensor:
        plain = tensor.detach().to("meta")
        if dtype is not None and plain.is_floating_point():
            plain = plain.to(dtype)
        return FakeTensor(mode, plain, torch.device("cpu"))

    data = map_tensors(batch, without_values)
    with _replaced(model, without_values), mode, ExitStack() as stack:
        if dtype is not None:
            stack.enter_context(_outputs_in_fp32(model))
        if fused_attention:
            stack.enter_context(_FusedAttention())
        return measure(model, task, data, autocast)


def measure(model: nn.Module, task: Task, batch: Any, autocast: bool) -> ActivationMemory:
    """Measure as the model is: also with values, on the CPU."""
    model.train()
    there = [*model.parameters(), *model.buffers()]
    with LiveStorage(there) as live:
        with live.noting_saved(), _autocast(autocast):
            loss = task.loss(model, batch).total
        torch.autograd.backward([loss])
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for parameter in model.parameters():
        parameter.grad = None
    return ActivationMemory(live.saved, live.peak(gradients), live.peak())


def _autocast(wanted: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16) if wanted else nullcontext()


class _FusedAttention(TorchFunctionMode):
    """On a CPU, attention with dropout keeps each head's whole matrix of weights; fused kernels do not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is scaled_dot_product_attention:
            kwargs.pop("dropout_p", None)
            args = (
                *args[:_DROPOUT_AT],
                *((0.0,) if len(args) > _DROPOUT_AT else ()),
                *args[_DROPOUT_AT + 1 :],
            )
        return func(*args, **kwargs)


@contextmanager
def _outputs_in_fp32(model: nn.Module) -> Iterator[None]:
    def wide(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.is_floating_point() else tensor

    handle = model.register_forward_hook(lambda module, args, output: map_tensors(output, wide))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _replaced(model: nn.Module, change: Any) -> Iterator[None]:
    """Put changed tensors in the place of parameters, buffers and tensors that are plain attributes."""
    found: dict[int, Tensor] = {}

    def changed(tensor: Tensor) -> Tensor:
        if id(tensor) not in found:
            new = change(tensor)
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, requires_grad=tensor.requires_grad)
            found[id(tensor)] = new
        return found[id(tensor)]

    slots: list[tuple[dict[str, Any], str, Tensor]] = [
        (names, name, tensor)
        for owner in model.modules()
        for names in (owner._parameters, owner._buffers, owner.__dict__)
        for name, tensor in names.items()
        if isinstance(tensor, Tensor)
    ]
    for names, name, tensor in slots:
        names[name] = changed(tensor)
    try:
        yield
    finally:
        for names, name, tensor in slots:
            names[name] = tensor
