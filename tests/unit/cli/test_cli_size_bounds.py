"""A number of nodes or processes beyond any cluster is a typing error, not a plan of hours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.options import param_types
from dist_train.config import launch_section

HUGE = "9" * 23


@pytest.mark.parametrize("launcher", ["local", "slurm", "kubernetes"])
@pytest.mark.parametrize("option", ["--nodes", "--gpus-per-node", "--max-restarts", "--cpus-per-gpu"])
@pytest.mark.parametrize("number", [HUGE, "9" * 5000])
def test_a_huge_number_is_refused_at_once(
    dist_train: Any, here: Path, launcher: str, option: str, number: str
) -> None:
    (here / "train.py").touch()
    said = dist_train("launch", "--launcher", launcher, option, number, "--dry-run", "train.py")
    assert said.code == 2
    assert "too large" in said.err or "not a whole number" in said.err
    assert len(said.err) < 1000


@pytest.mark.parametrize("key", ["nodes", "gpus_per_node", "max_restarts"])
def test_in_a_config_too(dist_train: Any, here: Path, key: str) -> None:
    (here / "train.yaml").write_text(f"name: a\nlaunch: {{{key}: {HUGE}}}\n")
    said = dist_train("config", "show", "train.yaml")
    assert said.code == 78, said
    assert f"launch.{key}" in said.err


@pytest.mark.parametrize("option", ["--nodes", "--gpus-per-node"])
def test_resume_has_the_same_bounds(make_run: Any, dist_train: Any, option: str) -> None:
    make_run("a-1").began().finished(1)
    assert dist_train("resume", "a-1", option, HUGE, "--dry-run").code == 2


def test_the_bounds_are_those_of_the_config() -> None:
    for name in ("MOST_NODES", "MOST_PROCESSES_PER_NODE"):
        assert getattr(param_types, name) == getattr(launch_section, name)


def test_a_log_limit_beyond_the_disk_is_named_with_both_sizes(dist_train: Any, here: Path) -> None:
    (here / "train.py").touch()
    words = ("launch", "--dry-run", "--device", "cpu", "--gpus-per-node", 1, "--log-limit")
    said = dist_train(*words, "900000T", "train.py")
    assert said.code == 0
    assert "--log-limit 900000.0 TiB is more than the disk of" in said.err
    assert "log lines are dropped and counted" in said.err
    assert "--log-limit" not in dist_train(*words, "1M", "train.py").err
