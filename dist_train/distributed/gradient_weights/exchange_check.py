"""Refuse an optimizer step over gradients that this rank has alone: the ranks' weights would drift apart."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from dist_train.distributed.gradient_weights.gradient_hooks import ModuleGradients
from dist_train.errors import UsageError

logger = logging.getLogger(__name__)


@dataclass
class _Seen:
    """What an optimizer steps."""

    parameters: int
    unexchanged: list[torch.Tensor]
    mixed: bool
    warned: bool = False


class ExchangeCheck:
    """Looks at every optimizer step of a job with several ranks; reads nothing from the device."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, _Seen] = weakref.WeakKeyDictionary()
        # Modules whose strategy exchanges gradients, or shards them, by rules of its own.
        self._others: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def add(self, module: nn.Module) -> None:
        """Count all parameters of this module as exchanged."""
        self._others.add(module)
        self.modules_changed()

    def modules_changed(self) -> None:
        """Another module was prepared: look at each optimizer's parameters again."""
        for seen in self._optimizers.values():
            seen.parameters = -1

    def stepped(
        self, optimizer: Optimizer, all_modules: Iterable[ModuleGradients], own: list[ModuleGradients]
    ) -> None:
        """Check the gradients of a step.

        Args:
            own: those of `all_modules` whose parameters it steps.

        Raises:
            UsageError: some of them were not exchanged.
        """
        seen = self._seen(optimizer, all_modules)
        alone = [p for p in seen.unexchanged if p.grad is not None]
        if alone and seen.mixed:
            raise _not_prepared(alone)
        if alone and not seen.warned and any(isinstance(p, nn.Parameter) for p in alone):
            seen.warned = True
            logger.warning(
                "%s steps %d parameters of no prepared module: their gradients are this rank's alone, so "
                "that they come to differ between ranks; model = dt.prepare(model) for each trained module",
                type(optimizer).__name__,
                len(alone),
            )
        if any(module.alone for module in own):
            raise _not_exchanged()

    def _seen(self, optimizer: Optimizer, modules: Iterable[ModuleGradients]) -> _Seen:
        number = sum(len(group["params"]) for group in optimizer.param_groups)
        seen = self._optimizers.get(optimizer)
        if seen is not None and seen.parameters == number:
            return seen
        exchanged = {id(p) for module in modules for p in module.parameters}
        exchanged |= {id(p) for module in self._others for p in module.parameters()}
        unexchanged = [
            p for group in optimizer.param_groups for p in group["params"] if id(p) not in exchanged
        ]
        new = _Seen(number, unexchanged, len(unexchanged) < number)
        if seen is not None:
            new.warned = seen.warned
        self._optimizers[optimizer] = new
        return new


def _not_prepared(alone: list[torch.Tensor]) -> UsageError:
    shapes = ", ".join(str(tuple(p.shape)) for p in alone[:3])
    return UsageError(
        f"the optimizer steps {len(alone)} parameters whose gradients the ranks do not exchange "
        f"(of shape {shapes}{', …' if len(alone) > 3 else ''})",
        cause="they belong to no prepared module, or had requires_grad=False at dt.prepare: each rank would "
        "train weights of its own",
        hint="make them part of the model before dt.prepare (a loss with parameters: dt.prepare(loss));\n"
        "         to freeze until later: leave requires_grad alone and step them from then on "
        "(optimizer.add_param_group);\n"
        "         exchanged by your own code: give them an optimizer of their own",
    )


def _not_exchanged() -> UsageError:
    return UsageError(
        "the optimizer steps gradients of a prepared module that the ranks have not exchanged",
        cause="each call of model(...) exchanges those of one backward pass: the last one before this step "
        "was the second over one call (retain_graph=True, several losses one after the other), or went past "
        "what dt.prepare returned (dt.unwrap(model), model.module, a method of it), or was under no_sync()",
        hint="add the losses of a step up and call backward once: (loss_a + loss_b).backward();\n"
        "         call model(...) itself, and reach other methods from its forward();\n"
        "         leave no_sync() for the last batch of each step",
    )
