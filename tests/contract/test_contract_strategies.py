"""Every strategy that the registry finds keeps the strategies' contract."""

from __future__ import annotations

import pytest

from dist_train import registry
from dist_train.testing import check_strategy

# On a CPU it must be told how many devices a rank has.
OPTIONS = {"split": {"devices": 2}}


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", registry.names("strategies"))
def test_strategy(name: str) -> None:
    check_strategy(registry.load("strategies", name), options=OPTIONS.get(name))


def test_there_are_the_first_two() -> None:
    assert {"ddp", "single"} <= set(registry.names("strategies"))
