"""`run.check_finite` and `run.all_finite`: the finite check for a loop of one's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dist_train.distributed.control_group import Control
from dist_train.distributed.finite_check import EVERY, FiniteCheck, NonFinite
from dist_train.distributed.finite_numbers import gradient_number
from dist_train.errors import NonFiniteError, UsageError
from dist_train.rundir.name_ranks import name_ranks

# More than a check can be late.
_CALLS_KEPT = 4 * EVERY


class LoopFiniteCheck:
    """The check of one run; every method but `end` is collective.

    Attributes:
        newest_checkpoint: where the newest checkpoint is, for the error; empty without one.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._check = FiniteCheck(control)
        self._calls = 0
        # Call -> the step that it was given for; of the calls that an answer can still be about.
        self._steps: dict[int, int] = {}
        self.newest_checkpoint = ""

    def see(self, numbers: tuple[Tensor, ...], model: nn.Module | None, step: int | None) -> None:
        """Take one step's numbers; raise NonFiniteError for those of an earlier one."""
        self._calls += 1
        shared = [] if model is None else [gradient_number(model.parameters())]
        _need_a_number(numbers, model)
        if step is not None:
            self._steps[self._calls] = step
        self._steps.pop(self._calls - _CALLS_KEPT, None)
        self._raise(self._check.add(self._calls, numbers, shared))

    def settle(self) -> None:
        """Wait for all that was taken; raise NonFiniteError for what is not finite."""
        self._raise(self._check.settle())

    def ask(self, numbers: tuple[Tensor, ...], model: nn.Module | None) -> bool:
        """Whether these are finite on all ranks; waits for the device and for all ranks."""
        _need_a_number(numbers, model)
        norms = [] if model is None else [gradient_number(model.parameters())]
        finite = all(bool(torch.isfinite(number.detach()).all()) for number in (*numbers, *norms))
        return not self._control.max_int(int(not finite))

    def _raise(self, found: NonFinite | None) -> None:
        if found is None:
            return
        self._check.forget()
        raise self._error(found.steps[0], name_ranks(found.ranks) if found.ranks else "")

    def end(self) -> None:
        """Raise NonFiniteError for what this rank gave last and no later call or save has answered."""
        found = self._check.own_rest()
        if found is not None:
            self._check.drop()
            raise self._error(found[0], name_ranks([self._control.rank]) if found[1] else "")

    def _error(self, call: int, ranks: str) -> NonFiniteError:
        step = self._steps.get(call)
        when = f"call {call}" if step is None else f"step {step}"
        named = "" if step is not None else "; run.check_finite(loss, step=step) names the step"
        what = f"the loss is not finite on {ranks}" if ranks else "the gradients are not finite"
        skip = "`if run.all_finite(loss, model=model): optimizer.step()` leaves such steps out"
        last = self.newest_checkpoint and f"the last finite checkpoint is {self.newest_checkpoint}; "
        return NonFiniteError(f"{when}: {what}", hint=f"{last}{skip}{named}")


def _need_a_number(numbers: tuple[Tensor, ...], model: nn.Module | None) -> None:
    if not numbers and model is None:
        raise UsageError(
            "there is nothing to look at",
            hint="run.check_finite(loss), or run.check_finite(loss, model=model)",
        )
