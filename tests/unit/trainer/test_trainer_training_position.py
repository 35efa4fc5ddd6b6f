"""The position follows from the number of steps; speed counts training alone."""

from __future__ import annotations

import pytest

from dist_train.trainer.console_messages import batch_split, resume_line
from dist_train.trainer.records.throughput import Interval, Pace
from dist_train.trainer.training_position import Horizon, Position


def test_positions_of_an_uneven_epoch() -> None:
    horizon = Horizon.of(samples=10, batch_size=4, epochs=2, steps=None)
    assert (horizon.steps_per_epoch, horizon.total_steps, horizon.epochs) == (3, 6, 2)
    assert [horizon.at(step) for step in (0, 2, 3, 4, 6)] == [
        Position(0, 0, 0, 0),
        Position(2, 0, 8, 8),
        Position(3, 1, 0, 10),
        Position(4, 1, 4, 14),
        Position(6, 2, 0, 20),
    ]
    assert [horizon.epoch_of(step) for step in (1, 3, 4, 6)] == [0, 0, 1, 1]
    assert [step for step in range(1, 7) if horizon.ends_epoch(step)] == [3, 6]


def test_a_length_in_steps_may_cut_the_last_epoch() -> None:
    horizon = Horizon.of(samples=10, batch_size=4, epochs=None, steps=4)
    assert (horizon.total_steps, horizon.epochs) == (4, 2)
    with pytest.raises(ValueError, match="epochs or steps"):
        Horizon.of(10, 4, epochs=1, steps=4)


def test_the_start_line_shows_the_split_of_the_batch() -> None:
    assert batch_split(64, 4, 1, 4) == "batch 64 = 4 ranks x 16 x 1"
    assert batch_split(64, 1, 2, 1) == "batch 64 = 1 rank x 32 x 2"
    assert batch_split(64, 3, 1, 3) == "batch 64 = 3 ranks x 21-22 x 1"
    assert batch_split(64, 2, 4, 8) == "batch 64 = 2 groups of 4 ranks x 8 x 4"
    assert resume_line(Position(42, 1, 1216, 2654)) == "resumed from step 42 (epoch 2, sample 1216)"


def test_pace_leaves_out_evaluations_and_saves_and_counts_waiting() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])

    def slow_items() -> list[int]:
        return [1, 2]

    for _ in pace.waiting(slow_items()):
        now[0] += 1.0
        pace.count(50)
    with pace.paused():
        now[0] += 100.0
    assert pace.next_interval() == Interval(
        samples_per_s=50.0, data_wait=0.0, step_s=1.0, data_s=0.0, steps=2
    )
    assert (pace.samples_per_s, pace.wall_s) == (50.0, 102.0)

    def late() -> object:
        for item in (1, 2):
            now[0] += 3.0
            yield item

    for _ in pace.waiting(late()):  # type: ignore[arg-type]
        now[0] += 1.0
        pace.count(8)
    interval = pace.next_interval()
    assert (interval.samples_per_s, interval.data_wait) == (2.0, 0.75)
    assert (interval.step_s, interval.data_s, interval.compute_s) == (4.0, 3.0, 1.0)
    assert (pace.whole.step_s, pace.whole.data_s) == (2.5, 1.5)
