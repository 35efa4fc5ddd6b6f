"""Every strategy that the registry finds keeps the strategies' contract."""

from __future__ import annotations

from typing import Any

import pytest

from dist_train import registry
from dist_train.testing import check_strategy

# On a CPU it must be told how many devices a rank has.
OPTIONS = {"split": {"devices": 2}}


# All of them on all sizes take a minute of CPU time. These have a mesh of two dimensions, and so four ranks.
IN_TWO_DIMENSIONS = ("hsdp", "fsdp_tensor_parallel")


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    "name", [name for name in registry.names("strategies") if name not in IN_TWO_DIMENSIONS]
)
def test_strategy_on_3_ranks(name: str) -> None:
    check_strategy(registry.load("strategies", name), options=OPTIONS.get(name), worlds=(3,))


@pytest.mark.proof
@pytest.mark.parametrize("name", registry.names("strategies"))
def test_strategy(name: str) -> None:
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
