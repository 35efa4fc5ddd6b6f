"""The gradients of a run's prepared modules: weighted by shares, or exact over units by run.backward."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dist_train.distributed.gradient_weights.batch_weight import BatchWeight, counted_placeholder
from dist_train.distributed.gradient_weights.exchange_check import ExchangeCheck
from dist_train.distributed.gradient_weights.exchange_time import ExchangeTime
from dist_train.distributed.gradient_weights.gradient_hooks import Factor, ModuleGradients
from dist_train.distributed.gradient_weights.optimizer_steps import mark_stepped
from dist_train.distributed.gradient_weights.unit_call import UnitCall
from dist_train.distributed.gradient_weights.units import Loss, Units, checked_terms
from dist_train.distributed.place import Place
from dist_train.errors import UsageError


class Gradients:
    """What a run does to gradients, besides their exchange by the strategy.

    Args:
        batch_weight: the shares of the batches in use.
        world_size: number of ranks, whose gradients the strategy averages.
        device: this rank's.
    """

    def __init__(self, batch_weight: BatchWeight, world_size: int, device: torch.device) -> None:
        self._batch_weight = batch_weight
        self._world_size = self._data_size = world_size
        self._counts = True
        self._device = device
        self._modules: weakref.WeakKeyDictionary[nn.Module, ModuleGradients] = weakref.WeakKeyDictionary()
        # Optimizer -> the modules whose parameters it steps.
        self._of_optimizer: weakref.WeakKeyDictionary[Optimizer, list[ModuleGradients]] = (
            weakref.WeakKeyDictionary()
        )
        self._exchange_check = ExchangeCheck() if world_size > 1 else None
        self._exchange_time = ExchangeTime(device.type == "cpu")
        self._call: UnitCall | None = None
        self._discarded = False
        # The backward pass that was seen last, and its share's weight.
        self._task = -1
        self._weight = 1.0
        self._on_step: Any = None
        self._before_step: Any = None
        # Some module's gradients may be scaled now.
        self._installed = False
        batch_weight.listen(self._shares_changed)

    def take_place(self, place: Place) -> None:
        """Weight by the shares of the data, which several ranks may have together."""
        self._data_size, self._counts = place.data_size, place.counts
        self._shares_changed()

    def track(self, module: nn.Module) -> None:
        """Weight this module's gradients from now on; the strategy averages them over the ranks."""
        self._modules[module] = ModuleGradients(module, self._factor, self._seen)
        self._exchange_time.track(module, self._world_size == 1)
        self._of_optimizer.clear()
        if self._exchange_check is not None:
            self._exchange_check.modules_changed()
        if self._on_step is None:
            self._on_step = register_optimizer_step_post_hook(self._stepped)
        if self._before_step is None and self._modules[module].is_sharded:
            self._before_step = register_optimizer_step_pre_hook(self._refuse_whole_parameters)
        self._shares_changed()

    def exchanged_otherwise(self, module: nn.Module) -> None:
        """The strategy does with this module's gradients what it needs; they are not weighted."""
        if self._exchange_check is not None:
            self._exchange_check.add(module)
        if self._on_step is None:
            self._on_step = register_optimizer_step_post_hook(self._stepped)

    def forward_seen(self, module: nn.Module) -> None:
        """A prepared module is called."""
        self._batch_weight.forward_seen()
        if module in self._modules:
            self._modules[module].forward_seen(module)

    def has_unreduced(self) -> bool:
        """Whether a sharded module holds gradients that were added up without an exchange (dt.no_sync)."""
        return any(module.has_unreduced() for module in self._modules.values())

    def close(self) -> None:
        """Remove every hook."""
        for hook in (self._on_step, self._before_step):
            if hook is not None:
                hook.remove()
        for module in list(self._modules.values()):
            module.close()
        self._modules.clear()

    @contextmanager
    def discarded(self) -> Iterator[None]:
        """A context whose backward passes do not count: their gradients are thrown away."""
        self._discarded = True
        try:
            yield
        finally:
            self._discarded = False

    def backward(self, loss_sum: Loss, units: Units, retain_graph: bool) -> None:
        """See Run.backward."""
        if not self._modules:
            raise UsageError(
                "run.backward: no prepared module's gradients are averaged over the ranks",
                hint="model = dt.prepare(model), before the optimizer is built",
            )
        terms = checked_terms(loss_sum, units)
        nothing = self._has_no_sample() or terms.nothing
        totals = self._sum_over_ranks(terms.on_device(self._device, nothing))
        scales = torch.where(totals > 0, self._data_size / totals, torch.zeros_like(totals))
        modules = list(self._modules.values())
        self._call = call = UnitCall(totals, len(terms.losses), nothing)
        try:
            if len(modules) == 1:
                scales = call.scaled_at_the_loss(modules[0], scales)
            self._install(nothing or len(modules) > 1)
            gradients = [scale.to(loss) for scale, loss in zip(scales, terms.losses, strict=True)]
            for place in terms.empty:
                gradients[place] = torch.zeros_like(gradients[place])
            torch.autograd.backward(terms.losses, gradients, retain_graph=retain_graph)
        finally:
            self._call = None
            self._shares_changed()
        for module in call.reached:
            module.remember_version()

    def _has_no_sample(self) -> bool:
        """Whether this rank's batch is a placeholder."""
        # Of micro-batches the loop gives the units, 0 for a placeholder.
        shares = [share for share in self._batch_weight.candidates() if not share.parts]
        empty = {share.local == 0 and share.total > 0 for share in shares}
        if len(empty) > 1:
            raise counted_placeholder()
        return True in empty

    def _sum_over_ranks(self, own: torch.Tensor) -> torch.Tensor:
        if self._world_size > 1:
            if not self._counts:
                own = torch.zeros_like(own)
            # With NCCL the device's queue waits for it, not this process.
            torch_dist.all_reduce(own)
        return own

    def _factor(self, module: ModuleGradients) -> Factor:
        """By what a gradient that is about to be added to `.grad` is multiplied."""
        if self._discarded:
            return None
        if self._call is not None:
            self._seen(False)
            return self._call.factor_of(module)
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._weight = self._batch_weight.of_backward(self._data_size)
            self._seen(False)
        return None if self._weight == 1.0 else self._weight

    def _seen(self, added: bool) -> bool:
        """A backward pass reaches a module; returns whether what it adds has no units of its own."""
        if self._discarded:
            return False
        task = torch._C._current_graph_task_id()
        if task != self._task:
            if added and self._call is None:
                self._weight = 1.0
            self._task = task
            self._batch_weight.backward_seen()
            self._exchange_time.backward_seen()
        return self._call is None

    def _shares_changed(self) -> None:
        shares = self._batch_weight.candidates()
        self._install(any(not share.is_even(self._data_size) for share in shares))

    def _install(self, needed: bool) -> None:
        if not (needed or self._installed):
            return  # as in nearly every step
        self._installed = needed
        for module in self._modules.values():
            if needed:
                module.install()
            elif module.hooked:
                module.uninstall()

    def _refuse_whole_parameters(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in self._of_optimizer:
            return  # looked at already
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        held = sum(module.holds_whole(stepped) for module in self._modules.values())
        if held:
            raise UsageError(
                f"the optimizer holds {held} whole parameters of a sharded model, not this rank's parts",
                cause="model(...) was called before the optimizer was built, and no backward pass followed: "
                "its parameters were still gathered; the step would change copies that are thrown away",
                hint="build the optimizer right after dt.prepare, or call model(...) under torch.no_grad()",
            )

    def _stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._batch_weight.step_seen()
        mark_stepped(optimizer)
        own = self._of_optimizer.get(optimizer)
        if own is None:
            stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
            own = self._of_optimizer[optimizer] = [
                module
                for module in self._modules.values()
                if any(id(p) in stepped for p in module.parameters)
            ]
        for module in own:
            module.forget()
            module.weights_changed()
        if self._exchange_check is not None:
            self._exchange_check.stepped(optimizer, self._modules.values(), own)
