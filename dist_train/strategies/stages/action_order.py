"""The order in which a stage does the forward and backward passes of a step's micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

Schedule = Literal["1f1b", "gpipe"]


class Action(NamedTuple):
    """One pass of one micro-batch."""

    kind: Literal["forward", "backward"]
    micro: int


def action_order(schedule: Schedule, stage: int, stages: int, micros: int) -> Iterator[Action]:
    """Yield a stage's passes in their order.

    In both orders each stage's passes of a kind come in the order of the micro-batches, and a stage waits
    only for passes that come earlier in its neighbours' order: no cycle, so that it ends for any number of
    micro-batches.

    Args:
        schedule: gpipe: all forward passes, then all backward passes; 1f1b: each backward pass as early as it
            can be, so that a stage keeps the activations of `stages - stage` micro-batches, and not of all.
        stage: from 0.
        stages: how many there are.
        micros: micro-batches of the step.
    """
    ahead = micros if schedule == "gpipe" else min(micros, stages - 1 - stage)
    for micro in range(ahead):
        yield Action("forward", micro)
    for micro in range(ahead, micros):
        yield Action("forward", micro)
        yield Action("backward", micro - ahead)
    for micro in range(micros - ahead, micros):
        yield Action("backward", micro)
