"""What dt.prepare returns, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dist_train as dt
from dist_train import registry
from dist_train.errors import ConfigError
from dist_train.strategies.base import Strategy
from dist_train.strategies.prepare import check_options, load_strategy


def test_the_registry_finds_strategies_and_nothing_else() -> None:
    assert {"single", "ddp"} <= set(registry.names("strategies"))
    for name in registry.names("strategies"):
        strategy = load_strategy(name)
        assert isinstance(strategy, Strategy)
        assert strategy.name == name
        strategy.Options()


def test_prepare_needs_a_run() -> None:
    with pytest.raises(ConfigError, match="outside a run"):
        dt.prepare(nn.Linear(2, 2))


def test_one_process_gets_its_model_unwrapped_and_options_are_still_checked() -> None:
    with dt.init(device="cpu"):
        model = nn.Linear(2, 2)
        assert dt.prepare(model, static_graph=True) is model
        assert dt.unwrap(model) is model
        with pytest.raises(ConfigError, match=r"no option 'static_grap'(.|\n)*did you mean 'static_graph'"):
            dt.prepare(model, static_grap=True)
        with pytest.raises(ConfigError, match="no strategy is called 'dpp'"):
            dt.prepare(model, "dpp")


def test_a_wrong_value_names_option_and_value() -> None:
    with pytest.raises(
        ConfigError, match="bucket_cap_mb=-1 of strategy 'ddp': input should be greater than 0"
    ):
        check_options(load_strategy("ddp"), {"bucket_cap_mb": -1})


def test_lazy_layers_are_refused_until_a_forward_has_given_them_a_shape() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    with dt.init(device="cpu"):
        with pytest.raises(
            ConfigError, match=r"Sequential has parameters without a shape: 0\.weight"
        ) as caught:
            dt.prepare(model)
        assert "one forward before dt.prepare" in str(caught.value.hint)
        with torch.no_grad():
            model(torch.ones(2, 2))
        assert dt.prepare(model) is model


@pytest.mark.multiprocess
def test_ranks_start_from_rank_0s_weights_and_buffers(ranks: Any) -> None:
    def start(meeting: str, broadcast_buffers: bool) -> list[float]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            plain = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
            plain[1].running_mean.fill_(run.rank)
            model = dt.prepare(plain, broadcast_buffers=broadcast_buffers)
            assert isinstance(model, DistributedDataParallel)
            assert dt.unwrap(model) is plain
            assert dt.unwrap(torch.compile(model, backend="eager")) is plain  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="wrapped already"):
                dt.prepare(model)
            with pytest.raises(ConfigError, match="'single' cannot train on 2 ranks"):
                dt.prepare(plain, "single")
            with pytest.raises(ConfigError, match="ReLU has no parameter that requires a gradient"):
                dt.prepare(nn.ReLU())
            return [float(plain[0].weight.sum()), float(plain[1].running_mean.sum())]

    for broadcast_buffers in (True, False):
        first, second = ranks(2, start, broadcast_buffers)
        assert first == second
        assert first[1] == 0.0


@pytest.mark.multiprocess
def test_accumulation_and_clipping_by_the_strategy(ranks: Any) -> None:
    def accumulate(meeting: str) -> list[float]:
        with dt.init(seed=0, device="cpu", init_method=meeting, timeout_s=20) as run:
            model = dt.prepare(nn.Linear(2, 1, bias=False).double())
            ddp = load_strategy("ddp")
            x = torch.tensor([[1.0, 2.0]], dtype=torch.float64)
            with ddp.no_sync(model):
                model(x * (run.rank + 1)).sum().backward()
            model(x).sum().backward()
            (grad,) = (p.grad for p in model.parameters())
            assert grad is not None
            before = grad.clone()
            norm = ddp.clip_norm(model, 1.0)
            return [*before.flatten().tolist(), norm, float(grad.norm())]

    # Ranks hold (1 + 1) x and (2 + 1) x: their mean is 2.5 x.
    answers = ranks(2, accumulate)
    assert answers[0] == answers[1]
    assert answers[0] == pytest.approx([2.5, 5.0, 31.25**0.5, 1.0])
