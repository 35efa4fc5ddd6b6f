"""A run interrupted at three ranks has the bits of one that was not, owing to the discarded step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.strategies.warmup import WarmUpOnFirstBatch, warm_up

pytestmark = pytest.mark.multiprocess


def _model(width: int) -> nn.Sequential:
    layers = [(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.1)) for _ in range(4)]
    return nn.Sequential(*(layer for block in layers for layer in block))


def _train(meeting: str, first: int, last: int, path: str, warm: str, options: dict[str, Any]) -> str:
    """Steps first..last from the file to the file; rank 0's weights as hex."""
    torch.manual_seed(0)
    with dt.init(device="cpu", init_method=meeting, timeout_s=20) as run:
        if warm == "never":
            WarmUpOnFirstBatch.__call__ = lambda *_: None  # type: ignore[method-assign]
        model = dt.prepare(_model(16), **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        def forward_backward() -> None:
            model(torch.randn(8, 16)).square().mean().backward()

        if warm == "explicit":
            assert warm_up(model, forward_backward)
        if first:
            state = torch.load(path)
            dt.unwrap(model).load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        for step in range(first, last):
            torch.manual_seed(100 * run.rank + step)
            optimizer.zero_grad()
            forward_backward()
            optimizer.step()
        state = {"model": dt.unwrap(model).state_dict(), "optimizer": optimizer.state_dict()}
        run.control.barrier()
        if run.is_main:
            torch.save(state, path)
        return b"".join(p.detach().numpy().tobytes() for p in model.parameters()).hex()


@pytest.mark.parametrize(
    ("warm", "options"),
    [
        ("automatic", {"bucket_cap_mb": 0.001}),
        pytest.param("explicit", {}, marks=pytest.mark.proof),
        pytest.param(
            "automatic", {"static_graph": True, "gradient_as_bucket_view": False}, marks=pytest.mark.proof
        ),
        ("never", {}),
    ],
)
def test_interrupted_equals_undisturbed_at_three_ranks(
    ranks: Any, tmp_path: Path, warm: str, options: dict[str, Any]
) -> None:
    straight = ranks(3, _train, 0, 6, f"{tmp_path}/a.pt", warm, options)
    ranks(3, _train, 0, 3, f"{tmp_path}/b.pt", warm, options)
    resumed = ranks(3, _train, 3, 6, f"{tmp_path}/b.pt", warm, options)
    assert len(set(straight)) == len(set(resumed)) == 1, "ranks agree among themselves"
    # Without the discarded step the bits differ.
    assert (resumed == straight) is (warm != "never")


def test_the_discarded_step_changes_no_state(ranks: Any) -> None:
    def trace(meeting: str) -> bool:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            plain = _model(8)
            model = dt.prepare(plain)
            buffers = {name: value.clone() for name, value in plain.named_buffers()}
            rng_state = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[union-attr]
            batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(1), requires_grad=True)
            with model.no_sync():  # type: ignore[operator]  # the first micro-batch of a step
                assert warm_up(model, lambda: model(batch.detach()).sum().backward())
            assert not warm_up(model, pytest.fail), "once is enough"
            assert all(p.grad is None for p in model.parameters())
            assert batch.grad is None
            assert torch.equal(rng_state[0], torch.get_rng_state())
            assert (random.getstate(), np.random.get_state()[1].tolist()) == rng_state[1:]  # type: ignore[union-attr]
            return all(torch.equal(buffers[name], value) for name, value in plain.named_buffers())

    assert ranks(2, trace) == [True, True]


def test_the_first_batch_is_copied_and_evaluation_does_not_count_as_first(ranks: Any) -> None:
    class AddsInPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            self.calls += 1
            return {"y": (x.add_(1.0) * self.scale,), "note": "text"}

    def first(meeting: str) -> list[float]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            model = dt.prepare(AddsInPlace())
            inner: Any = dt.unwrap(model)
            model.eval()
            model(torch.zeros(2))
            assert inner.calls == 1
            model.train()
            batch = torch.zeros(2)
            model(x=batch)["y"][0].sum().backward()
            assert inner.calls == 2
            return [float(batch.sum()), float(inner.scale.grad)]

    assert ranks(2, first) == [[2.0, 2.0], [2.0, 2.0]]


def test_an_output_object_of_its_own_is_trained(ranks: Any) -> None:
    class Hidden:
        def __init__(self, y: torch.Tensor) -> None:
            self.parts = [self, {"y": torch.distributions.Normal(y, 1.0)}]

    class Hides(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return (Hidden(super().forward(x)), x)

    def train(meeting: str) -> bool:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            model = dt.prepare(Hides(2, 2))
            model(torch.ones(1, 2))[0].parts[1]["y"].mean.sum().backward()
            assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
        return True

    assert ranks(2, train) == [True, True]


class _Counts(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.calls, self.seen, self.backwards = 0, [0], 0
        self.total = torch.zeros(())
        self.register_full_backward_hook(self._count)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        self.seen.append(self.calls)
        self.total += 1
        self.cached = getattr(self, "cached", 0) + 1
        return super().forward(x)

    def _count(self, *args: Any) -> None:
        self.backwards += 1


def test_counters_and_hooks_of_gradients_see_the_first_batch_once(ranks: Any) -> None:
    """An optimizer in a hook would apply the discarded gradient."""

    def first(meeting: str) -> list[Any]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20):
            model = dt.prepare(_Counts())
            inner: Any = dt.unwrap(model)
            fired = []
            inner.weight.register_hook(lambda grad: fired.append("grad"))
            inner.weight.register_post_accumulate_grad_hook(lambda parameter: fired.append("added"))
            model(torch.ones(1, 2)).sum().backward()
            state = [inner.calls, inner.seen, float(inner.total), inner.cached]
            return [*state, inner.backwards, fired]

    assert ranks(2, first) == [[1, [0, 1], 1.0, 1, 1, ["grad", "added"]]] * 2
