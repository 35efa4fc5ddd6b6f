"""Records and amounts as text, and the remaining time of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dist_train.rundir import metric_text
from dist_train.rundir.eta import Eta
from dist_train.rundir.format_amounts import clock, size


def record(**more: Any) -> dict[str, Any]:
    """A training record as the trainer writes it."""
    places = {"kind": "train", "step": 40, "total_steps": 230, "epoch": 1, "epochs": 10, "samples": 2560}
    return {**places, "loss": 0.312, "lr": 0.003, "metrics": {"accuracy": 0.9062}, **more}


SPEED = {
    "samples_per_s": 5120.4,
    "data_wait": 0.031,
    "eta_s": 750.0,
    "memory_bytes": 2**29,
    "memory_rank": 2,
    "step_s": 0.1234,
    "data_s": 0.0042,
    "compute_s": 0.1192,
    "step_s_mean": 0.12,
    "data_s_mean": 0.006,
    "compute_s_mean": 0.114,
}


def test_a_training_record_is_one_line_with_the_columns_of_imagenet_scripts() -> None:
    assert metric_text.train_line(record(**SPEED)) == (
        "epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062  lr 0.003  5120 samples/s  data wait 3 %  "
        "Time 0.123 (0.120)  Data 0.004 (0.006)  Compute 0.119 (0.114)  ETA 12:30  memory 512.0 MiB (rank 2)"
    )


def test_an_evaluation_line_has_place_and_figures_only() -> None:
    line = metric_text.eval_line(record(kind="eval"))
    assert line == "evaluation after epoch 2/10  step 40/230  loss 0.3120  accuracy 0.9062"


def test_the_line_names_the_slowest_rank_only_if_the_others_wait_for_it() -> None:
    even = record(**SPEED, slowest_rank=3, slowest_s=0.045, others_s=0.044)
    late = record(**SPEED, slowest_rank=3, slowest_s=0.095, others_s=0.044)
    assert "slowest" not in metric_text.train_line(even)
    assert metric_text.train_line(late).endswith("slowest rank 3 (0.095 s, others 0.044)")
    assert metric_text.slowest(even) == ["slowest rank 3 (0.045 s, others 0.044)"]


def test_a_script_may_log_any_field() -> None:
    logged = {"schema_version": 1, "time": "…", "kind": "train", "step": 7, "epoch": 3, "loss": 2, "f1": 0.5}
    line = metric_text.train_line({**logged, "tiny": 3e-5, "note": "warm", "done": True})
    assert line == "epoch 3  step 7  loss 2  f1 0.5000  tiny 3e-05"


def test_progress_lines_are_those_that_repeat_a_record() -> None:
    progress = metric_text.ProgressLines([record(), record(kind="eval", step=46)])
    assert progress.has(metric_text.train_line(record(**SPEED)))
    assert progress.has(metric_text.eval_line(record(kind="eval", step=46)))
    assert not progress.has(metric_text.train_line(record(step=41)))
    assert not progress.has("epoch 2/10  step 40/230  loss 0.31200")
    assert not progress.has("epoch 2/10 begins")
    assert not metric_text.ProgressLines([{}]).has("")


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0:00"),
        (42.4, "0:42"),
        (750, "12:30"),
        (3753, "1:02:33"),
        (183_000, "2 d 02:50"),
        (-3, "0:00"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_clock(seconds: float, expected: str) -> None:
    assert clock(seconds) == expected


def test_size() -> None:
    assert [size(812), size(1.3 * 2**20), size(2.0**44)] == ["812 B", "1.3 MiB", "16.0 TiB"]


def test_the_eta_follows_the_speed_of_the_last_minutes() -> None:
    eta = Eta()
    assert eta.seconds(100) is None
    eta.see(10, 100.0)
    assert eta.seconds(100) is None, "one step tells no pace"
    eta.see(20, 120.0)
    assert eta.seconds(100) == 160.0
    for step in range(21, 400):  # ten times as slow, for longer than the history
        eta.see(step, 120.0 + 20.0 * (step - 20))
    assert eta.seconds(500) == pytest.approx(101 * 20.0)
    assert eta.seconds(300) == 0.0


def test_a_restart_from_an_earlier_step_resets_the_eta() -> None:
    eta = Eta()
    eta.see(10, 0.0)
    eta.see(20, 10.0)
    eta.see(15, 100.0)
    assert eta.seconds(100) is None
    eta.see(17, 104.0)
    assert eta.seconds(100) == 83 * 2.0
