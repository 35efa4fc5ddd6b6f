"""A sink whose package is not installed is an error of check and launch, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dist_train import registry

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"
ASKED = (DIGITS, "logging.sinks=[tensorboard]")


def test_a_missing_package_is_78_with_the_command_that_installs_it(
    here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dist_train("config", "check", *ASKED).code == 0
    monkeypatch.setattr(
        registry, "missing", lambda kind, name: {"tensorboard": "pip install 'dist-train[tensorboard]'"}
    )
    for words in (["config", "check"], ["launch", "--device", "cpu"]):
        said = dist_train(*words, *ASKED)
        assert said.code == 78, said
        assert "tensorboard needs the package tensorboard, which is not installed" in said.err
        assert "pip install 'dist-train[tensorboard]'" in said.err
    assert not (here / "runs").exists()
