"""Every strategy that the registry finds keeps the strategies' contract."""

from __future__ import annotations

import pytest

from dist_train import registry
from dist_train.testing import check_strategy


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", registry.names("strategies"))
def test_strategy(name: str) -> None:
    check_strategy(registry.load("strategies", name))


MESHES = (
    {"stage": 2, "replicate": 2},
    {"stage": 2, "shard": 2, "schedule": "gpipe"},
    {"split": ["layers.0", "layers.1", "last"]},
)


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", MESHES, ids=" ".join)
def test_meshes_of_pipeline(options: dict[str, object]) -> None:
    check_strategy(registry.load("strategies", "pipeline"), worlds=(4,), options=options)


def test_there_are_the_first_two() -> None:
    assert {"ddp", "single"} <= set(registry.names("strategies"))
