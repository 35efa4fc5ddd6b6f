"""The arguments of run.backward: losses summed over this rank's units, and the numbers of units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dist_train.errors import UsageError

Loss = torch.Tensor | Sequence[torch.Tensor]
Units = int | torch.Tensor | Sequence[int | torch.Tensor]


@dataclass(frozen=True)
class Terms:
    """Losses, each a sum over its own units."""

    losses: list[torch.Tensor]
    units: list[int | torch.Tensor]

    @property
    def nothing(self) -> bool:
        """Whether this rank has no unit, as far as is known without reading from the device."""
        return len(self.empty) == len(self.units)

    @property
    def empty(self) -> list[int]:
        """Places of the losses with 0 units on this rank: a placeholder sample counts nothing."""
        return [place for place, number in enumerate(self.units) if isinstance(number, int) and number == 0]

    def on_device(self, device: torch.device, nothing: bool) -> torch.Tensor:
        """The units as float64 of shape (terms,); zeros for a rank with nothing. Reads nothing back."""
        numbers = []
        for number in self.units:
            if isinstance(number, torch.Tensor) and not nothing:
                numbers.append(number.detach().to(device, torch.float64).reshape(()))
            else:
                value = 0 if nothing or isinstance(number, torch.Tensor) else number
                # Filled by a kernel: torch.tensor(value, device=…) would wait for the device.
                numbers.append(torch.full((), value, dtype=torch.float64, device=device))
        return torch.stack(numbers)


def checked_terms(loss_sum: Loss, units: Units) -> Terms:
    """The losses with their units; UsageError for anything that run.backward does not take."""
    losses = [loss_sum] if isinstance(loss_sum, torch.Tensor) else list(loss_sum)
    numbers = [units] if isinstance(units, int | torch.Tensor) else list(units)
    if len(losses) != len(numbers) or not losses:
        raise UsageError(
            f"run.backward: {len(losses)} losses and {len(numbers)} numbers of units",
            hint="run.backward((sum_a, sum_b), units=(n_a, n_b))",
        )
    for loss in losses:
        if loss.numel() != 1:
            raise UsageError(
                f"run.backward: the loss has shape {tuple(loss.shape)}",
                cause="it is the sum over this rank's units",
                hint='reduction="sum", or run.backward(losses.sum(), units=len(losses))',
            )
    for number in numbers:
        _check(number)
    return Terms(losses, numbers)


def _check(number: int | torch.Tensor) -> None:
    if isinstance(number, torch.Tensor):
        if number.numel() != 1:
            raise UsageError(
                f"run.backward: units has shape {tuple(number.shape)}",
                hint="one number for each loss, such as (labels != -100).sum()",
            )
    elif isinstance(number, bool) or number < 0:
        raise UsageError(
            f"run.backward: units={number!r}",
            cause="units are the samples or tokens of this rank that the loss was summed over",
            hint="units=len(y), or (labels != -100).sum(); 0 where this rank has none",
        )
