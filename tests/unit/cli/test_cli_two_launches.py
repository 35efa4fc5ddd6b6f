"""Two launches into one directory at once: one of them goes on, and the other harms nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dist_train.rundir import RunDir


@pytest.fixture
def another(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The plan of a launch that was quicker by a moment: both have found the directory free."""
    create = RunDir.create
    (here / "train.py").write_text("")

    def later(run: RunDir) -> None:
        create(run)
        run.plan.mkdir()
        (run.plan / "agents.json").write_text("of the other")

    monkeypatch.setattr(RunDir, "create", later)
    return here / "runs" / "same" / "plan" / "agents.json"


def test_the_second_is_refused_and_leaves_the_first_alone(
    another: Path, dist_train: Callable[..., Any]
) -> None:
    said = dist_train("launch", "--name", "same", "--device", "cpu", "train.py")
    assert said.code == 78, said
    assert "another `dist-train launch` into" in said.err
    assert "give this run another --name" in said.err
    assert another.read_text() == "of the other"
