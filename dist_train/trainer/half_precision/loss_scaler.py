"""The scale of an fp16 loss: torch's GradScaler, but decided by all ranks together, and saved.

torch's GradScaler looks at a rank's own gradients. DTensors share what they find within a group of
shards at most: with hsdp one copy of the model would leave a step out that another makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from dist_train.checkpoint.run_context import current_control
from dist_train.distributed.control_group import Control
from dist_train.distributed.finite_numbers import number_of
from dist_train.distributed.parameter_shards import own_part
from dist_train.errors import ConfigError, UsageError

# Below it gradients overflow that are hardly scaled: no scale would help.
SMALLEST = 1.0


class Verdict(IntEnum):
    """What all ranks have found; the worst of any rank holds on all."""

    FINITE = 0
    OVERFLOW = 1
    LOSS_NOT_FINITE = 2


class LossScaler:
    """Scales losses, takes the scale out of gradients, and leaves steps out whose gradients overflow.

        scaler = dt.LossScaler()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)      # before gradients are clipped; else step does it
        dt.clip_grad_norm_(model, 1.0)
        scaler.step(optimizer)          # False: left out on all ranks
        scaler.update()

    Put it into what a CheckpointManager saves: with the scale, a resumed run has the same bits.

    Args:
        initial: the first scale, at least 1; a power of two keeps the bits of gradients.
        growth_factor: by which it grows, > 1.
        backoff_factor: by which it falls after an overflow, between 0 and 1; never below 1.
        growth_interval: steps without an overflow before it grows.
        control: all ranks; None: those of the run that there is at the first step.

    Raises:
        ConfigError: a number that is out of its range.
    """

    # A checkpoint of a run in another precision has none: the scale then begins with `initial`.
    optional_in_checkpoint = True

    def __init__(
        self,
        initial: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        control: Control | None = None,
    ) -> None:
        if not (initial >= SMALLEST and growth_factor > 1 > backoff_factor > 0 and growth_interval >= 1):
            raise ConfigError(
                f"loss scale: initial={initial}, growth_factor={growth_factor}, "
                f"backoff_factor={backoff_factor}, growth_interval={growth_interval}",
                hint="initial at least 1, growth_factor above 1, backoff_factor between 0 and 1, "
                "growth_interval at least 1",
            )
        self._control = control
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval
        # Since the last update(); a step without an entry there takes the scale out first.
        self._verdicts: dict[Optimizer, Verdict] = {}
        self._ended: set[Optimizer] = set()
        self.factor = float(initial)
        self.good_steps = 0
        self.skipped = 0

    def scale(self, loss: Tensor) -> Tensor:
        """The loss times the scale; one in float16 as float32, in which it does not overflow."""
        wide = loss.float() if loss.dtype == torch.float16 else loss
        return wide * self.factor

    def unscale_(self, optimizer: Optimizer, losses: Iterable[Tensor] = ()) -> Verdict:
        """Divide the optimizer's gradients by the scale; collective, and the host waits for the device.

        Args:
            losses: of this rank; one that is not finite is no overflow of the scale's making.

        Raises:
            UsageError: a second call for this optimizer in one step, or gradients in float16.
            ConfigError: there are several ranks and no run.
        """
        if optimizer in self._verdicts:
            raise UsageError("LossScaler.unscale_: called twice", hint="call scaler.update() after each step")
        control = self._control or current_control()
        gradients = [own_part(p.grad) for p in _parameters(optimizer) if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise UsageError(
                "LossScaler: gradients are in float16",
                cause="they overflow and vanish, whatever the scale",
                hint="keep the weights in float32, and compute in fp16 by autocast",
            )
        with torch.no_grad():
            if gradients:
                torch._foreach_mul_(gradients, 1.0 / self.factor)
            found = Verdict.FINITE if bool(torch.isfinite(number_of(gradients))) else Verdict.OVERFLOW
            if not all(bool(torch.isfinite(loss)) for loss in losses):
                found = Verdict.LOSS_NOT_FINITE
        verdict = self._verdicts[optimizer] = Verdict(control.max_int(int(found)))
        return verdict

    def step(self, optimizer: Optimizer) -> bool:
        """The optimizer's step, unless a gradient of it is not finite on any rank; whether it was made.

        Raises:
            UsageError: as unscale_(), or a second step of this optimizer without update() in between.
        """
        if optimizer in self._ended:
            raise UsageError(
                "LossScaler.step: called twice for one optimizer without update()",
                cause="the scale would stay in the gradients",
                hint="call scaler.update() once after each step, after the last of several optimizers",
            )
        verdict = self._verdicts[optimizer] if optimizer in self._verdicts else self.unscale_(optimizer)
        self._ended.add(optimizer)
        if verdict is not Verdict.FINITE:
            return False
        optimizer.step()
        return True

    def update(self) -> None:
        """Let the scale fall after an overflow, or grow after enough steps without one.

        Call it once per step: of several optimizers after the last one's.
        """
        verdict = max(self._verdicts.values(), default=None)
        self._forget()
        if verdict is Verdict.OVERFLOW:
            self.factor = max(SMALLEST, self.factor * self._backoff)
            self.good_steps = 0
            self.skipped += 1
        elif verdict is Verdict.FINITE:
            self.good_steps += 1
            if self.good_steps == self._interval:
                self.factor *= self._growth
                self.good_steps = 0

    def state_dict(self) -> dict[str, Any]:
        """The scale, the steps since it changed, and how many were left out."""
        return {"factor": self.factor, "good_steps": self.good_steps, "skipped": self.skipped}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with this scale."""
        self.factor, self.good_steps = float(state["factor"]), int(state["good_steps"])
        self.skipped = int(state["skipped"])
        self._forget()

    def _forget(self) -> None:
        self._verdicts, self._ended = {}, set()


def _parameters(optimizer: Optimizer) -> Iterable[nn.Parameter]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
