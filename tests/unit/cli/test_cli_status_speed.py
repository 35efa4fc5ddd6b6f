"""`status` shows the speed of a run, and of a user's script the numbers that it logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SPEED = {"lr": 0.1, "samples_per_s": 5120.4, "data_wait": 0.03, "step_s": 0.12, "data_s": 0.004}
LEFT = {"step_s_mean": 0.11, "data_s_mean": 0.005, "eta_s": 750.0, "memory_bytes": 2**30, "memory_rank": 0}


def test_a_running_run_has_its_speed(make_run: Callable[..., Any], dist_train: Any, own: Any) -> None:
    made = make_run("a-1").began().trained(20, **SPEED, **LEFT)
    own(made.run)
    speed = next(line for line in dist_train("status").out.splitlines() if line.startswith("speed "))
    assert speed.split(maxsplit=1)[1].split(", ") == [
        "lr 0.1",
        "5120 samples/s",
        "data wait 3 %",
        "Time 0.120 (0.110)",
        "Data 0.004 (0.005)",
        "ETA 12:30",
        "memory 1.0 GiB (rank 0)",
    ]


def test_an_ended_run_has_none(make_run: Callable[..., Any], dist_train: Any) -> None:
    make_run("a-1").began().trained(20, **SPEED, **LEFT).finished(1)
    assert "speed" not in dist_train("status").out


def test_the_numbers_of_a_script_are_shown_as_it_logged_them(
    make_run: Callable[..., Any], dist_train: Any
) -> None:
    make_run("a-1").began().trained(20, loss=0.25, zeta=3, alpha=0.5, note="warm").finished(0)
    assert "train       step 20, epoch 0, loss 0.25, alpha 0.5, zeta 3\n" in dist_train("status").out
