"""ddp's option `communication_hook`: it keeps the bits of a restart; what cannot be kept is refused."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn

import dist_train as dt
from dist_train.errors import ConfigError
from dist_train.strategies.strategy_fit import fit_strategy
from dist_train.testing import run_ranks


def losses(options: dict[str, Any], steps: range, begin: dict[str, Any] | None) -> list[Any]:
    """Losses of some steps from a state, the state after them, and what was logged of the exchange."""
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("dist_train.strategies.replicas.exchanged_model")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    with dt.init(device="cpu", seed=0, timeout_s=60) as run:
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
        model = dt.prepare(plain, "ddp", bucket_cap_mb=0.001, **options)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        if begin is not None:
            plain.load_state_dict(begin["model"])
            optimizer.load_state_dict(begin["optimizer"])
        found = []
        for step in steps:
            inputs = torch.randn(6, 6, generator=torch.Generator().manual_seed(step))[
                run.rank :: run.world_size
            ]
            optimizer.zero_grad()
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            found.append(run.control.sum([float(loss.detach())])[0] / run.world_size)
        return [found, {"model": plain.state_dict(), "optimizer": optimizer.state_dict()}, records]


@pytest.mark.multiprocess
def test_fp16_keeps_the_bits_of_a_restart_and_is_near_the_exact_exchange() -> None:
    half = {"communication_hook": "fp16"}
    whole, _, logged = run_ranks(losses, 3, 60, args=(half, range(6), None))[0]
    begun, state, _ = run_ranks(losses, 3, 60, args=(half, range(3), None))[0]
    again, _, _ = run_ranks(losses, 3, 60, args=(half, range(3, 6), state))[0]
    exact, _, silent = run_ranks(losses, 3, 60, args=({}, range(6), None))[0]
    assert begun + again == whole
    assert whole == pytest.approx(exact, rel=1e-2)
    assert whole != exact
    assert [line for line in logged if "exchanged in fp16" in line and "same bits" in line]
    assert not silent


def test_bf16_is_refused_where_torch_cannot_exchange_it() -> None:
    with pytest.raises(ConfigError, match="communication_hook='bf16'"):
        fit_strategy("ddp", {"communication_hook": "bf16"}, 2, "cpu")
    fit_strategy("ddp", {"communication_hook": "bf16"}, 2, "cuda")


def test_a_hook_with_a_state_that_no_checkpoint_holds_is_refused() -> None:
    with pytest.raises(ConfigError, match="communication_hook='powersgd'"):
        fit_strategy("ddp", {"communication_hook": "powersgd"}, 2, "cpu")
