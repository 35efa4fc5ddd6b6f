"""One call of run.backward: by what the gradients of each module that it reaches are scaled."""

from __future__ import annotations

import torch

from dist_train.distributed.gradient_weights.gradient_hooks import Factor, ModuleGradients


class UnitCall:
    """One call of run.backward.

    Args:
        totals: units of each term over all ranks, float64 on the device.
        terms: their number.
        nothing: this rank has no unit in any term.
    """

    def __init__(self, totals: torch.Tensor, terms: int, nothing: bool) -> None:
        self.nothing = nothing
        self.reached: list[ModuleGradients] = []
        self._ratios: list[torch.Tensor | None] = []
        self._at_the_loss = False
        self._totals = totals
        self._terms = terms

    def scaled_at_the_loss(self, module: ModuleGradients, scales: torch.Tensor) -> torch.Tensor:
        """The scales of the losses where one module is prepared: its gradients need none of their own."""
        ratio = self._reach(module)
        self._at_the_loss = True
        return scales if ratio is None else scales * ratio

    def factor_of(self, module: ModuleGradients) -> Factor:
        """What a gradient of this module is multiplied by, besides the scale of the loss."""
        ratio = self._reach(module)
        if self.nothing:
            return 0.0
        return None if self._at_the_loss else ratio

    def _reach(self, module: ModuleGradients) -> torch.Tensor | None:
        """units of this call / units behind the module's gradients with this call's; None for 1."""
        for known, ratio in zip(self.reached, self._ratios, strict=True):
            if known is module:
                return ratio
        self._ratios.append(module.add_units(self._totals[0], self._terms))
        self.reached.append(module)
        return self._ratios[-1]
