"""Activation checkpointing: chosen modules keep their inputs only, and run again in the backward pass.

torch.utils.checkpoint (use_reentrant=False) inside of each module's forward: no module is put around another,
so that names of weights stay as they are, and fully_shard's and DDP's hooks stay outside, where they are once
per step. The second run draws the same random numbers (dropout). Buffers (running statistics) have in it the
values that they had in the first run, and keep what that made of them: torch alone would update them twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn, overrides
from torch.utils.checkpoint import checkpoint

from dist_train.errors import ConfigError
from dist_train.strategies.blocks.chosen_blocks import AUTO, choose_blocks
from dist_train.strategies.fully_sharded.sharding_units import Unit
from dist_train.strategies.unwrap import is_wrapped

_Slot = tuple[nn.Module, str]


def checkpoint_activations(
    model: nn.Module, modules: str | Sequence[str] = AUTO, *, option: str = "modules"
) -> nn.Module:
    """Let modules of a model compute their activations again in the backward pass; return the model.

    Call it before dt.prepare. Losses, gradients and names of weights stay as they are, to the last bit. What
    a forward pass changes beside buffers (a counter that is a Python attribute) it changes twice.

    Args:
        model: plain.
        modules: names of classes, or patterns of module names (`layers.*`); `auto`: each member of a
            ModuleList. Of those inside of one another the outermost.
        option: what errors call `modules`.

    Raises:
        ConfigError: a wrapped model, a name that fits no module, or a module whose `forward` was replaced.
    """
    if is_wrapped(model):
        raise ConfigError(
            f"this {type(model).__name__} is wrapped already",
            hint="checkpoint activations of the plain model, before dt.prepare",
        )
    blocks = choose_blocks(model, modules, option)
    for block in blocks:
        _refuse_replaced_forward(block, option)
    for block in blocks:
        block.module.__dict__["forward"] = MethodType(forward, block.module)
    return model


def _refuse_replaced_forward(block: Unit, option: str) -> None:
    own = block.module.__dict__.get("forward")
    if own is not None:
        what = "checkpoints its activations already" if _is_ours(own) else "has a `forward` of its own"
        raise ConfigError(
            f"{option}: '{block.name}' {what}", hint="name each module once, and leave this one out"
        )


def _is_ours(method: object) -> bool:
    return getattr(method, "__func__", None) is forward


def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a chosen module (named so for pickle, which looks a method up by its name)."""
    first = cast("Any", type(module)).forward
    if not torch.is_grad_enabled():
        return first(module, *args, **kwargs)
    # Bound here: torch's checkpoint would take keywords such as `debug` for its own.
    if torch.compiler.is_compiling() or not (_slots(module) or _modes() or _own_parts(module)):
        return checkpoint(partial(first, module, **kwargs), *args, use_reentrant=False)
    return checkpoint(partial(_SameRuns(module, first), **kwargs), *args, use_reentrant=False)


class _SameRuns:
    """A forward that runs once to compute and once more, or never, to recompute.

    Both runs have the same buffers, the same modes (`with torch.device(…)`): within a backward pass torch
    has none; and the same tensors in the place of parameters, which tensor parallelism puts there while the
    model runs.
    """

    def __init__(self, module: nn.Module, first: Any) -> None:
        self._module = module
        self._forward = first
        self._modes: list[overrides.TorchFunctionMode] = _modes()
        self._parts = _own_parts(module)
        # Of those that the first run has changed: values of before it.
        self._before: dict[_Slot, Tensor] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._before is not None:
            with self._buffers_of_before(), self._parts_of_before(), ExitStack() as modes:
                for mode in self._modes:
                    modes.enter_context(mode)
                return self._forward(self._module, *args, **kwargs)
        there = {slot: _buffer(slot) for slot in _slots(self._module)}
        copies = {slot: (buffer.detach().clone(), buffer._version) for slot, buffer in there.items()}
        out = self._forward(self._module, *args, **kwargs)
        self._before = {
            slot: copy
            for slot, (copy, version) in copies.items()
            if _buffer(slot) is not there[slot] or there[slot]._version != version
        }
        return out

    @contextmanager
    def _buffers_of_before(self) -> Iterator[None]:
        # Copies of all: batch_norm changes running statistics without a new version of them.
        assert self._before is not None
        now = {slot: _buffer(slot) for slot in _slots(self._module)}
        for (owner, name), buffer in now.items():
            owner._buffers[name] = self._before.get((owner, name), buffer).detach().clone()
        try:
            yield
        finally:
            for (owner, name), buffer in now.items():
                owner._buffers[name] = buffer

    @contextmanager
    def _parts_of_before(self) -> Iterator[None]:
        missing = [(slot, part) for slot, part in self._parts.items() if slot[1] not in slot[0].__dict__]
        for (owner, name), part in missing:
            owner.__dict__[name] = part
        try:
            yield
        finally:
            for (owner, name), _ in missing:
                del owner.__dict__[name]


def _own_parts(module: nn.Module) -> dict[_Slot, Any]:
    return {
        (owner, name): owner.__dict__[name]
        for owner in module.modules()
        for name in owner._parameters
        if name in owner.__dict__
    }


def _modes() -> list[overrides.TorchFunctionMode]:
    return list(cast("Any", overrides)._get_current_function_mode_stack())


def _slots(module: nn.Module) -> list[_Slot]:
    return [
        (owner, name)
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]


def _buffer(slot: _Slot) -> Tensor:
    owner, name = slot
    return cast("Tensor", owner._buffers[name])
