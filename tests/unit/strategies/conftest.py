"""The strategy `twins`, by its name."""

from __future__ import annotations

import pytest
from twins_strategy import Twins

from dist_train import registry


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    load = registry.load
    monkeypatch.setattr(registry, "load", lambda kind, name: Twins() if name == "twins" else load(kind, name))
