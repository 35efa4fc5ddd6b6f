"""Every launcher that the registry finds keeps the launchers' contract."""

from __future__ import annotations

import pytest

from dist_train import registry
from dist_train.testing import check_launcher


@pytest.mark.parametrize("name", registry.names("launchers"))
def test_launcher(name: str) -> None:
    check_launcher(registry.load("launchers", name))


def test_there_is_the_local_one() -> None:
    assert "local" in registry.names("launchers")
