"""The memory of one rank: the sum of its parts, and the peak of a step."""

from __future__ import annotations

from dataclasses import dataclass

from dist_train.estimate.activation_memory import ActivationMemory
from dist_train.estimate.measured_parts import MeasuredParts
from dist_train.estimate.optimizer_memory import OptimizerMemory
from dist_train.strategies.rank_memory import RankMemory


@dataclass(frozen=True)
class RankTotal:
    """Bytes of one rank; None: not known.

    Args:
        rank: whose.
        gathered: whole parameters and buffers of the exchange, where parameters are spread.
        temporary: further tensors of forward and backward pass, at their peak.
        peak: on the device, at most; without activations where these are not known.
        on_host: parameters, gradients and optimizer state lie in CPU memory instead.
    """

    rank: int
    parameters: int
    gradients: int
    optimizer: int | None
    buffers: int
    activations: int | None
    temporary: int | None
    gathered: int
    peak: int
    on_host: bool = False

    @property
    def complete(self) -> bool:
        """Whether every part of the peak is known."""
        return self.activations is not None and self.optimizer is not None


def rank_total(
    parts: MeasuredParts, held: RankMemory, found: ActivationMemory | None, accumulate: int, on_gpu: bool
) -> RankTotal:
    """Add up what a rank holds, what its optimizer keeps and what one micro-batch needs.

    Args:
        held: by its strategy.
        found: activations of its micro-batch; None: leave them out.
        accumulate: micro-batches per step: gradients are there while further ones are computed.
        on_gpu: the optimizer updates many parameters at once.
    """
    state = parts.optimizer(held.shapes)
    return RankTotal(
        rank=held.rank,
        parameters=held.parameters,
        gradients=held.gradients,
        optimizer=state.bytes,
        buffers=parts.buffers,
        activations=None if found is None else found.saved,
        temporary=None if found is None else found.peak - found.saved,
        gathered=held.gathered + held.exchange,
        peak=_peak(held, state, found, parts.buffers, accumulate, on_gpu),
        on_host=held.on_host,
    )


def _peak(
    held: RankMemory,
    state: OptimizerMemory,
    found: ActivationMemory | None,
    buffers: int,
    accumulate: int,
    on_gpu: bool,
) -> int:
    """The larger one of the backward pass and of the optimizer's step, on the device."""
    always = buffers + (0 if held.on_host else held.parameters + (state.bytes or 0))
    gradients = 0 if held.on_host else held.gradients
    if found is None:
        computing = gradients
    elif held.whole_gradients or accumulate > 1:
        computing = gradients + found.peak
    else:
        computing = found.with_gradients
    # A GPU's optimizers compute with lists of tensors, and keep one as large as the gradients meanwhile.
    stepping = gradients * 2 if on_gpu and state.by_groups else gradients
    return always + max(computing + held.gathered + held.exchange, stepping)
