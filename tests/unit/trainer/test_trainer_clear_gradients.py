"""Gradients are cleared as by the optimizer's own zero_grad, and at less cost where that is torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Optimizer

from dist_train.trainer.step import clear_gradients


def made(kind: type[SGD] = SGD) -> SGD:
    """Over two groups; one parameter has no gradient."""
    found = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    for parameter in found[:2]:
        parameter.grad = torch.ones(3)
    return kind([{"params": found[:1]}, {"params": found[1:], "lr": 0.5}], lr=1.0)


def gradients(optimizer: Optimizer) -> list[Any]:
    return [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]


def test_all_gradients_of_all_groups_are_gone() -> None:
    optimizer = made()
    clear_gradients(optimizer)
    assert gradients(optimizer) == [None, None, None]


def test_nothing_is_marked_where_no_profiler_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, marks = made(), []
    monkeypatch.setattr(torch.autograd.profiler, "record_function", marks.append)
    clear_gradients(optimizer)
    assert gradients(optimizer) == [None, None, None]
    assert not marks


def test_a_trace_has_torchs_mark() -> None:
    optimizer = made()
    with torch.profiler.profile() as trace:
        clear_gradients(optimizer)
    assert gradients(optimizer) == [None, None, None]
    assert "Optimizer.zero_grad#SGD.zero_grad" in [event.name for event in trace.events() or []]


class Keeps(SGD):
    """Clears them to zeros, and counts."""

    cleared = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.cleared += 1
        super().zero_grad(set_to_none=False)


def test_a_zero_grad_of_its_own_is_called() -> None:
    optimizer = made(Keeps)
    clear_gradients(optimizer)
    assert isinstance(optimizer, Keeps)
    assert optimizer.cleared == 1
    first, second, none = gradients(optimizer)
    assert none is None
    assert not first.any()
    assert not second.any()


def test_a_zero_grad_that_was_put_on_the_object_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, calls = made(), []
    monkeypatch.setattr(optimizer, "zero_grad", lambda set_to_none=True: calls.append(set_to_none))
    clear_gradients(optimizer)
    assert calls == [True]


def test_a_zero_grad_that_a_library_has_put_on_torchs_class_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer, calls = made(), []
    monkeypatch.setattr(Optimizer, "zero_grad", lambda self, set_to_none=True: calls.append(set_to_none))
    clear_gradients(optimizer)
    assert calls == [True]
