"""One number of threads per rank: what is asked for twice is refused, what is not used is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dist_train.cli.launch import rank_environment
from dist_train.cli.launch.device_choice import Devices
from dist_train.config.launch_section import LaunchConfig
from dist_train.jobs.machine import Usable

DIGITS = Path(__file__).parents[3] / "examples" / "digits.yaml"


@pytest.fixture
def launch(here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def run(*words: object) -> Any:
        return dist_train("launch", "--dry-run", "--device", "cpu", *words, DIGITS, "threads_per_rank=3")

    return run


def threads(said: Any) -> int:
    assert said.code == 0, said
    number: int = json.loads(said.out)["spec"]["threads_per_rank"]
    return number


def test_another_number_by_env_is_refused(launch: Any) -> None:
    said = launch("--env", "OMP_NUM_THREADS=2")
    assert said.code == 78
    assert "threads_per_rank: 3, and the ranks' environment OMP_NUM_THREADS=2" in said.err
    assert "give the override threads_per_rank=2" in said.err


def test_the_same_number_by_env_is_taken(launch: Any) -> None:
    assert threads(launch("--env", "OMP_NUM_THREADS=3")) == 3


def test_the_shells_other_number_is_said_not_to_be_used(launch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    said = launch()
    assert threads(said) == 3
    assert "threads per rank: 3 (threads_per_rank; this shell's OMP_NUM_THREADS=2 is not used)" in said.err
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in launch().err


@pytest.mark.parametrize("number", ["²", "two", "-1", "1.5"])
def test_what_is_no_number_is_refused(
    here: Path, dist_train: Any, monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", number)
    said = dist_train("launch", "--dry-run", "--device", "cpu", DIGITS)
    assert (said.code, f"OMP_NUM_THREADS={number!r} is no number of threads" in said.err) == (78, True), said
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert dist_train("launch", "--dry-run", "--device", "cpu", DIGITS).code == 0


def test_on_gpus_of_one_machine_the_ranks_of_all_simulated_nodes_share_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(rank_environment, "usable_cores", lambda: Usable(64, 64, "of this cpuset"))
    launch = LaunchConfig(nodes=4, gpus_per_node=2)
    found, (line,) = rank_environment.threads_per_rank(None, launch, Devices("cuda", 2), {})
    assert (found, line) == (8, "threads per rank: 8 (64 cores, of this cpuset / 8 ranks)")
