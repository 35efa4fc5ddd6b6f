"""Every strategy that the registry finds keeps the strategies' contract."""

from __future__ import annotations

from typing import Any

import pytest

from dist_train import registry
from dist_train.testing import check_strategy

# On a CPU it must be told how many devices a rank has.
OPTIONS = {"split": {"devices": 2}}


# Half a minute of CPU time for all sizes: make test has one, of uneven shares where the mesh allows it.
ONE_SIZE = {"hsdp": 4, "fsdp_tensor_parallel": 4}


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", registry.names("strategies"))
def test_strategy(name: str) -> None:
    worlds = (ONE_SIZE.get(name, 3),)
    check_strategy(registry.load("strategies", name), options=OPTIONS.get(name), worlds=worlds)


@pytest.mark.proof
@pytest.mark.parametrize("name", registry.names("strategies"))
def test_strategy_on_2_3_and_4_ranks(name: str) -> None:
    check_strategy(registry.load("strategies", name), options=OPTIONS.get(name))


# The tied layers too are cut.
_ALL = {
    "first": "colwise_gathered",
    "last": "colwise_gathered",
    "gated": "fused_colwise:2",
    "down": "rowwise",
}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("name", "ranks", "options"),
    [
        ("fsdp_tensor_parallel", 3, {"tensor": 3}),
        ("fsdp_tensor_parallel", 4, {"tensor": 4, "units": ["gated"]}),
        ("fsdp_tensor_parallel", 4, {"plan": _ALL, "reshard_after_forward": False}),
        ("tensor_parallel", 3, {"plan": _ALL}),
        ("pipeline", 4, {"stage": 2, "replicate": 2}),
        ("pipeline", 4, {"stage": 2, "shard": 2, "schedule": "gpipe"}),
        ("pipeline", 4, {"split": ["layers.0", "layers.1", "last"]}),
    ],
)
def test_strategy_with_options(name: str, ranks: int, options: dict[str, Any]) -> None:
    strategy = registry.load("strategies", name)
    check_strategy(strategy, worlds=(ranks,), options=options)  # type: ignore[arg-type]


def test_there_are_the_first_two() -> None:
    assert {"ddp", "single"} <= set(registry.names("strategies"))
