"""A step over gradients that one rank has alone is refused: the ranks' weights would drift apart."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from uneven_loops import new_loader, new_net, sgd

import dist_train as dt
from dist_train.testing import run_ranks

pytestmark = pytest.mark.multiprocess


def _trained(forward: Callable[[Any], Any], optimizer: torch.optim.Optimizer) -> None:
    for x, y in new_loader(8):
        optimizer.zero_grad()
        functional.cross_entropy(forward(x), y).backward()
        optimizer.step()


def past_the_wrapper() -> None:
    model = new_net()
    _trained(dt.unwrap(model), sgd(model))


def never_synchronised() -> None:
    model = new_net()
    with model.no_sync():
        _trained(model, sgd(model))


def past_the_wrapper_from_the_second_step_on() -> None:
    model = new_net()
    optimizer = sgd(model)
    _trained(model, optimizer)
    _trained(dt.unwrap(model), optimizer)


def two_backward_passes_over_one_forward() -> None:
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader(8):
        optimizer.zero_grad()
        out = model(x)
        functional.cross_entropy(out, y).backward(retain_graph=True)
        out.square().mean().backward()
        optimizer.step()


def two_forwards_then_two_backward_passes() -> None:
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader(8):
        optimizer.zero_grad()
        first, second = functional.cross_entropy(model(x), y), model(-x).square().mean()
        first.backward()
        second.backward()
        optimizer.step()


def parameter_of_no_module() -> None:
    model, scale = new_net(), nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = sgd(model)
    optimizer.add_param_group({"params": [scale]})
    _trained(lambda x: model(x) * scale, optimizer)


def unfrozen_after_prepare() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    plain[0].requires_grad_(False)
    model = dt.prepare(plain)
    optimizer = sgd(plain)
    _trained(model, optimizer)
    plain[0].requires_grad_(True)
    _trained(model, optimizer)


REFUSED = {
    past_the_wrapper: "went past what dt.prepare returned",
    never_synchronised: "was under no_sync",
    past_the_wrapper_from_the_second_step_on: "went past what dt.prepare returned",
    two_backward_passes_over_one_forward: "the second over one call",
    two_forwards_then_two_backward_passes: "the second over one call",
    parameter_of_no_module: r"1 parameters whose gradients the ranks do not exchange \(of shape \(2,\)",
    unfrozen_after_prepare: r"requires_grad=False at dt.prepare",
}


def _refusals() -> list[str]:
    found = []
    for loop in REFUSED:
        try:
            loop()
        except dt.errors.UsageError as error:
            found.append(f"{error}\n{error.cause}")
        else:
            found.append("not refused")
    return found


def test_a_step_over_one_ranks_gradients_is_refused_on_all_ranks() -> None:
    def rank() -> list[str]:
        dt.init(seed=0)
        return _refusals()

    for found in run_ranks(rank, 2):
        for text, pattern in zip(found, REFUSED.values(), strict=True):
            assert re.search(pattern, text), text


def two_optimizers_of_one_module() -> None:
    model = new_net()
    body, head = (torch.optim.Adam(dt.unwrap(model)[place].parameters()) for place in (0, 2))
    for x, y in new_loader(8):
        model.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        body.step()
        head.step()


def lbfgs() -> None:
    model = new_net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in new_loader(8):

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        optimizer.step(closure)


def no_sync_but_the_last() -> None:
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader(8):
        with model.no_sync():
            functional.cross_entropy(model(x), y).backward()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def adversary() -> None:
    """A perturbation of this rank's own samples, trained beside the model."""
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader(8):
        change = torch.zeros_like(x, requires_grad=True)
        attack = torch.optim.SGD([change], 0.1)
        (-functional.cross_entropy(model(x + change), y)).backward()
        attack.step()
        optimizer.zero_grad()
        functional.cross_entropy(model(x + change.detach()), y).backward()
        optimizer.step()


def looks_at_its_own_gradient() -> None:
    model = new_net()
    optimizer = sgd(model)
    for x, y in new_loader(8):
        functional.cross_entropy(dt.unwrap(model)(x), y).backward()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def frozen_part() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()
    plain[0].requires_grad_(False)
    model = dt.prepare(plain)
    _trained(model, sgd(plain))


def test_correct_loops_are_not_refused() -> None:
    def rank() -> None:
        dt.init(seed=0)
        for loop in (
            two_optimizers_of_one_module,
            lbfgs,
            no_sync_but_the_last,
            adversary,
            looks_at_its_own_gradient,
            frozen_part,
        ):
            loop()

    run_ranks(rank, 2)


def test_an_optimizer_of_unprepared_parameters_alone_is_warned_about_once() -> None:
    def rank() -> list[str]:
        dt.init(seed=0)
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("dist_train.distributed.gradient_weights.exchange_check").addHandler(handler)
        model, centers = new_net(), nn.Parameter(torch.zeros(2, dtype=torch.float64))
        optimizer, second = sgd(model), torch.optim.SGD([centers], 0.1)
        for x, y in new_loader(8):
            functional.cross_entropy(model(x) - centers, y).backward()
            optimizer.step()
            second.step()
        return said

    for said in run_ranks(rank, 2):
        assert len(said) == 1
        assert "SGD steps 1 parameters of no prepared module" in said[0]
