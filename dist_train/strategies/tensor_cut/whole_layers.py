"""Run a model with the parts of its layers and with whole layers, and say how far the results are apart."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dist_train.distributed.pytree import map_tensors
from dist_train.strategies.discarded_step import attributes_kept
from dist_train.strategies.tensor_cut.layer_hooks import LayerMode
from dist_train.strategies.tensor_cut.tensor_group import TensorGroup
from dist_train.strategies.warmup import state_kept

logger = logging.getLogger(__name__)

# Of the norm: sums in another order give far less, a wrong plan gives about 1.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
_OF_HALF = 0.1


@dataclass(frozen=True)
class Difference:
    """The largest one: relative to the norm of what whole layers give.

    Args:
        where: what it is a difference of.
        tolerance: what rounding may give.
    """

    error: float
    where: str
    tolerance: float


def compare_with_whole_layers(
    model: nn.Module, args: Any, kwargs: Any, group: TensorGroup, mode: LayerMode
) -> Difference | None:
    """Compare the inputs of rowwise layers and the outputs, in eval mode (collective in the group).

    What a rowwise layer gets are this rank's features of what it would get whole: so a difference shows also
    where the layer's weight is zero at the start. Nothing of the model is changed.

    Returns:
        None: they are alike on all ranks of the group, or cannot be compared (a warning says why).
    """
    try:
        ours = _run(model, args, kwargs, mode, whole=False)
        theirs = _run(model, args, kwargs, mode, whole=True)
    except Exception as error:  # the model's own: it may not work in eval mode
        logger.warning("the plan is not compared with the whole model: %s: %s", type(error).__name__, error)
        return None
    found = _largest(ours, theirs, group)
    if not group.any(found.error > found.tolerance):
        return None
    again = _run(model, args, kwargs, mode, whole=True, other_numbers=True)
    drawn = _largest(again, theirs, group)
    if group.any(drawn.error > drawn.tolerance):
        logger.warning(
            "the plan is not compared with the whole model, which draws random numbers in eval mode"
        )
        return None
    return found


def _largest(
    ours: Sequence[tuple[str, Tensor]], theirs: Sequence[tuple[str, Tensor]], group: TensorGroup
) -> Difference:
    worst = Difference(0.0, "the output", 1.0)
    for (name, part), (_, full) in zip(ours, theirs, strict=False):
        if part.shape != full.shape and part.dim() == full.dim():
            full = full.narrow(-1, group.rank * part.shape[-1], part.shape[-1])
        found = Difference(_relative(part, full), name, _TOLERANCES.get(part.dtype, _OF_HALF))
        if found.error / found.tolerance >= worst.error / worst.tolerance:
            worst = found
    return worst


def _run(
    model: nn.Module, args: Any, kwargs: Any, mode: LayerMode, whole: bool, other_numbers: bool = False
) -> list[tuple[str, Tensor]]:
    mode.whole, mode.inputs = whole, []
    try:
        with _as_evaluated(model):
            if other_numbers:
                torch.rand(1000)
            # Copies: a model may change its input in place.
            given, named = map_tensors(list(args), Tensor.clone), map_tensors(dict(kwargs), Tensor.clone)
            # The module's own hooks have been called: this is inside of its first forward pass.
            output = model.forward(*given, **named)
            inputs = [(f"the input of '{name}'", tensor) for name, tensor in mode.inputs]
    finally:
        mode.whole, mode.inputs = False, None
    found: list[tuple[str, Tensor]] = []

    def note(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            found.append(("the output", tensor.detach().clone()))
        return tensor

    map_tensors(output, note)
    return inputs + found


def _relative(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        return 1.0
    ours, theirs = ours.double(), theirs.double()
    size = float(theirs.norm())
    difference = float((ours - theirs).norm())
    return difference / size if size else float(difference > 0)


@contextmanager
def _as_evaluated(model: nn.Module) -> Iterator[None]:
    """No dropout, no gradient, no autocast; buffers, attributes, RNG state and modes as before at the end."""
    modes = [(module, module.training) for module in model.modules()]
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    with torch.no_grad(), torch.autocast(device, enabled=False), state_kept(model), attributes_kept(model):
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, training in modes:
                module.training = training
