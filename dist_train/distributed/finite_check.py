"""Find a loss or gradient that is not finite: on all ranks together, without waiting for the device.

Every call leaves a few numbers on the device. Each 16th one begins a copy of them to the host; the next
call reads that copy and begins a sum over the ranks on the control group, and the call after it reads the
sum. So the host never waits for work that it has only just queued, and all ranks learn of it at the same
call, at most 17 calls late. What must not be late (a save) calls `settle`, which waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dist_train.distributed.control_group import Control, Deferred

# Calls between two checks: a sum over the ranks costs some 0.1 ms.
EVERY = 16


@dataclass(frozen=True)
class NonFinite:
    """What was found; equal on all ranks.

    Args:
        steps: those with a number that is not finite, in ascending order; at least one.
        ranks: whose own numbers (the loss) were not finite in the first of them; none where only numbers
            that the ranks share (the gradient's norm) were.
        checked: the last step that was looked at.
    """

    steps: tuple[int, ...]
    ranks: tuple[int, ...]
    checked: int


class _Numbers(NamedTuple):
    """One call's numbers, still on the device."""

    step: int
    own: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]


@dataclass(frozen=True)
class _Flags:
    """Whether each number is finite, on its way to the host."""

    steps: tuple[_Numbers, ...]
    copy: Tensor
    arrived: Any | None

    @classmethod
    def of(cls, steps: Sequence[_Numbers]) -> _Flags:
        """Begin the copy."""
        numbers = [number for step in steps for number in (*step.own, *step.shared)]
        place = numbers[0].device
        flags = _are_finite(numbers)
        copy = flags.to("cpu", non_blocking=True)
        arrived = None
        if place.type == "cuda":
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(torch.cuda.current_stream(place))
        return cls(tuple(steps), copy, arrived)

    def bad(self) -> list[list[int]]:
        """[step, 1 if a number of this rank's own] of each step with a number that is not finite."""
        if self.arrived is not None:
            self.arrived.synchronize()
        finite = iter(self.copy.tolist())
        found = []
        for step in self.steps:
            own, shared = [list(islice(finite, len(numbers))) for numbers in (step.own, step.shared)]
            if not all([*own, *shared]):
                found.append([step.step, int(not all(own))])
        return found


def _detached(number: Tensor) -> Tensor:
    return number.detach() if number.requires_grad else number


def _are_finite(numbers: Sequence[Tensor]) -> Tensor:
    first = numbers[0]
    if all(one.dim() == 0 and one.dtype == first.dtype and one.device == first.device for one in numbers):
        return torch.isfinite(torch.stack(list(numbers)))
    return torch.stack([torch.isfinite(number).all().to(first.device) for number in numbers])


class FiniteCheck:
    """Checks one training; every method is collective.

    Args:
        control: all ranks.
        every: calls between two checks, the same on all ranks.
    """

    def __init__(self, control: Control, every: int = EVERY) -> None:
        self._control = control
        self._every = every
        self._waiting: list[_Numbers] = []
        self._flags: _Flags | None = None
        self._sum: Deferred[list[float]] | None = None
        self._bad: list[list[int]] = []
        self._checked = 0

    def add(self, step: int, own: Sequence[Tensor] = (), shared: Sequence[Tensor] = ()) -> NonFinite | None:
        """Take the numbers of a step; return what an earlier call's turn out to be, once that is known.

        Args:
            step: its number, for the answer.
            own: one-element tensors of this rank: its losses.
            shared: those that are equal on all ranks: the gradient's norm. At least one in all.
        """
        found = self._advance()
        self._waiting.append(_Numbers(step, tuple(map(_detached, own)), tuple(map(_detached, shared))))
        if len(self._waiting) >= self._every and self._flags is None and self._sum is None:
            self._flags, self._waiting = _Flags.of(self._waiting), []
        return found

    def settle(self) -> NonFinite | None:
        """Wait for everything that was added so far; what of it is not finite."""
        found = self._advance()
        while found is None and (self._flags or self._sum or self._waiting):
            if self._flags is None and self._sum is None:
                self._flags, self._waiting = _Flags.of(self._waiting), []
            found = self._advance()
        return found

    def _advance(self) -> NonFinite | None:
        """Do the next part of a check that has begun; equally often on all ranks."""
        if self._sum is not None:
            total, self._sum = self._sum.get()[0], None
            return self._agree() if total else None
        if self._flags is not None:
            flags, self._flags = self._flags, None
            self._bad, self._checked = flags.bad(), flags.steps[-1].step
            self._sum = self._control.sum_later([float(len(self._bad))])
        return None

    def _agree(self) -> NonFinite:
        everywhere: list[Any] = self._control.all_gather([list(pair) for pair in self._bad])
        steps = sorted({step for found in everywhere for step, _own in found})
        first = [steps[0], 1]
        ranks = tuple(rank for rank, found in enumerate(everywhere) if first in found)
        return NonFinite(tuple(steps), ranks, self._checked)

    def own_rest(self) -> tuple[int, bool] | None:
        """First step of this rank that is not finite and not answered yet, and whether its loss is it.

        Not collective: for the end of a script, which ranks reach at their own time.
        """
        bad = list(self._bad) if self._sum is not None else []
        bad += [] if self._flags is None else self._flags.bad()
        bad += _Flags.of(self._waiting).bad() if self._waiting else []
        return (bad[0][0], bool(bad[0][1])) if bad else None

    def forget(self) -> None:
        """Drop what was added and not yet checked: the training goes back to before it. Collective."""
        if self._sum is not None:
            self._sum.get()
        self.drop()

    def drop(self) -> None:
        """Drop it without a word to the other ranks: no call follows."""
        self._waiting, self._flags, self._sum = [], None, None
