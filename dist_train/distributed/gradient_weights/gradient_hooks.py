"""Scale what a backward pass adds to the gradients of one module, before it is added."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

from dist_train.distributed.parameter_shards import (
    accumulating_parameters,
    exchange_device,
    gradients_kept_apart,
    is_sharded,
    own_part,
    sharded_modules,
)
from dist_train.errors import UsageError

# Factor by which a gradient is multiplied; None leaves it alone, 0.0 makes it zero even where infinite.
Factor = float | torch.Tensor | None


class ModuleGradients:
    """The gradients of one prepared module: hooks where they are accumulated, and the units behind them.

    The hooks are on the graph nodes that add to `.grad`, so that outputs, losses and `autograd.grad` are
    left alone and each contribution is scaled once, whether it is exchanged now or accumulated first.

    Args:
        module: what prepare returned.
        factor: called for each gradient that is about to be added while the hooks are installed.
        seen: called when a backward pass has reached the module's first or last parameter.
    """

    def __init__(
        self, module: nn.Module, factor: Callable[[ModuleGradients], Factor], seen: Callable[[bool], bool]
    ) -> None:
        pairs = accumulating_parameters(module)
        self.parameters = [own for own, _ in pairs]
        # Where a backward pass adds: of a sharded parameter, the whole one.
        self._accumulating = [whole for _, whole in pairs]
        # Total of the calls of run.backward whose gradients are in `.grad`, on the device; None: no call.
        self.units: torch.Tensor | None = None
        # More than one loss with units of its own is in `.grad`, or a gradient that had no units.
        self.mixed = False
        # DDP exchanges the gradients of one backward pass after each forward pass of the wrapper.
        self._counted = isinstance(module, DistributedDataParallel) and not module.static_graph
        self._version = -1
        self.is_sharded = any(own is not whole or is_sharded(own) for own, whole in pairs)
        # Not the modules themselves: they would never be freed.
        self._units = [weakref.ref(unit) for unit in sharded_modules(module)]
        self._factor = factor
        self._installed: dict[int, tuple[Any, Any]] = {}
        # The hooks should be there, and some parameter was frozen when they were installed.
        self._incomplete = False
        ends = {id(p): p for p in (*self._accumulating[:1], *self._accumulating[-1:])}.values()
        add_hook: Any = torch.Tensor.register_post_accumulate_grad_hook
        self._probes = [_Probe(self, seen) for _ in ends]
        self._handles = [add_hook(p, probe) for p, probe in zip(ends, self._probes, strict=True)]

    def holds_whole(self, ids: Collection[int]) -> int:
        """How many of these are whole parameters, in place of this rank's parts of them."""
        own = {id(parameter) for parameter in self.parameters}
        return sum(id(whole) in ids and id(whole) not in own for whole in self._accumulating)

    def has_unreduced(self) -> bool:
        """Whether whole gradients of sharded parameters wait for their exchange."""
        own = {id(parameter) for parameter in self.parameters}
        here = any(whole.grad is not None for whole in self._accumulating if id(whole) not in own)
        return here or bool(self._kept_apart())

    def weights_changed(self) -> None:
        """The weights were stepped: what a forward pass without a backward pass left gathered is older.

        torch would compute with it again, as it gathers only what is not.
        """
        for found in self._units:
            unit = found()
            if unit is not None:
                unit.reshard()

    @property
    def hooked(self) -> bool:
        """Whether gradients are scaled now."""
        return bool(self._installed)

    def install(self) -> None:
        """Scale every gradient from now on."""
        if self._installed and not self._incomplete:
            return
        self._incomplete = False
        me = weakref.ref(self)

        def scale(grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor] | None:
            owner, grad = me(), grads[0]
            if owner is None or grad is None:
                return None
            factor = owner._factor(owner)
            return None if factor is None else (_scaled(grad, factor),)

        for place, (own, whole) in enumerate(zip(self.parameters, self._accumulating, strict=True)):
            if not own.requires_grad:
                self._incomplete = True
            elif place not in self._installed:
                # torch takes it over from the part when it gathers the unit: after this call.
                whole.requires_grad_(True)
                # The node is kept: without a reference to it a new one, without the hook, is made.
                node: Any = get_gradient_edge(whole).node
                self._installed[place] = (node, node.register_prehook(scale))

    def uninstall(self) -> None:
        """Leave gradients alone again."""
        for _, handle in self._installed.values():
            handle.remove()
        self._installed.clear()
        self._incomplete = False

    def close(self) -> None:
        """Remove all hooks."""
        self.uninstall()
        for handle in self._handles:
            handle.remove()

    def forward_seen(self, module: nn.Module) -> None:
        """The wrapper is called."""
        if self._incomplete:
            # Frozen parts may train again, as a GAN's discriminator in every step.
            self.install()
        if torch.is_grad_enabled() and getattr(module, "require_backward_grad_sync", True):
            for probe in self._probes:
                probe.exchanged_next = True

    @property
    def alone(self) -> bool:
        """Whether gradients of the newest backward pass are there that were not exchanged."""
        if not (self._counted and any(probe.alone for probe in self._probes)):
            return False
        return any(p.grad is not None and bool(p.grad.any()) for p in self.parameters)

    def forget(self) -> None:
        """The gradients were applied or dropped: the next call of run.backward starts from nothing."""
        self.units, self.mixed = None, False

    def add_units(self, total: torch.Tensor, terms: int) -> torch.Tensor | None:
        """Rescale the gradients that are there to the sum of units with this call's.

        Args:
            total: units of this call over all ranks, float64 on the device.
            terms: losses with units of their own in this call.

        Returns:
            This call's part of the units, by which its gradient is multiplied; None: it is all of them.
        """
        grads = self._gradients()
        if not grads:
            self.forget()
        if self.units is None:
            self.units, self.mixed = total, self.mixed or terms > 1
            return None
        if self.mixed or terms > 1:
            raise _mixed()
        before = self.units * self._still_there(grads)
        self.units = before + total
        positive, one = self.units > 0, torch.ones_like(self.units)
        _multiply(grads, torch.where(positive, before / self.units, one))
        return torch.where(positive, total / self.units, one)

    def remember_version(self) -> None:
        """Note the state of the gradients at the end of a call of run.backward."""
        grad = next(iter(self._gradients()), None)
        self._version = -1 if grad is None else grad._version

    def _gradients(self) -> list[torch.Tensor]:
        """This rank's parts, and those of sharded parameters that are not reduced yet."""
        both = {id(p): p for p in (*self.parameters, *self._accumulating)}.values()
        return [own_part(p.grad) for p in both if p.grad is not None] + self._kept_apart()

    def _kept_apart(self) -> list[torch.Tensor]:
        units = [found for found in (unit() for unit in self._units) if found is not None]
        return [gradient for unit in units for gradient in gradients_kept_apart(unit)]

    def _still_there(self, grads: list[torch.Tensor]) -> torch.Tensor | float:
        """0 where zero_grad(set_to_none=False) has cleared the gradients since; decided on the device."""
        # A sharded gradient that is set to zero keeps its version.
        if grads[0]._version == self._version and not self.is_sharded:
            return 1.0
        largest = [norm.double() for norm in torch._foreach_norm(_strided(grads), float("inf"))]
        if not (largest or self.is_sharded):
            return 1.0
        found = torch.stack(largest).amax() if largest else torch.zeros((), device=grads[0].device).double()
        if self.is_sharded:
            # A rank's own parts may all be zero.
            shared = found.to(exchange_device(found.device))
            torch_dist.all_reduce(shared, torch_dist.ReduceOp.MAX)
            found = shared.to(found.device)
        return (found != 0).double()


class _Probe:
    """Hook of a parameter whose gradient has been added."""

    def __init__(self, owner: ModuleGradients, seen: Callable[[bool], bool]) -> None:
        self._owner = weakref.ref(owner)
        self._seen = seen
        # Whether the next gradient that is added is exchanged; whether the last one was not.
        self.exchanged_next = self.alone = False

    def __call__(self, parameter: torch.Tensor) -> None:
        owner = self._owner()
        if owner is None:
            return
        self.alone, self.exchanged_next = not self.exchanged_next, False
        # A gradient without units beside those of run.backward.
        if self._seen(True):
            owner.mixed = True


def _strided(grads: list[torch.Tensor]) -> list[torch.Tensor]:
    return [grad.detach() for grad in grads if grad.layout == torch.strided and grad.numel()]


def _multiply(grads: list[torch.Tensor], factor: torch.Tensor) -> None:
    with torch.no_grad():
        strided = [grad for grad in grads if grad.layout == torch.strided]
        if strided:
            torch._foreach_mul_(strided, factor)
        for grad in grads:
            if grad.layout != torch.strided:
                grad.mul_(factor)


def _scaled(grad: torch.Tensor, factor: float | torch.Tensor) -> torch.Tensor:
    # A rank without samples runs a placeholder batch: its gradient is taken as zero, even where infinite.
    if isinstance(factor, float) and factor == 0.0:
        return torch.zeros_like(grad)
    return grad * factor


def _mixed() -> UsageError:
    return UsageError(
        "run.backward: the gradients already hold something that has no units of its own",
        cause="a plain loss.backward(), or a loss of several terms, came before in the same optimizer step: "
        "its part cannot be rescaled to the new sum of units",
        hint="give every loss of an optimizer step to run.backward, each with one number of units; "
        "several terms: in one call per step, after adding their sums up",
    )
