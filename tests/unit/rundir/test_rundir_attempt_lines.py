"""The agent's line at the start of an attempt, written and read."""

from __future__ import annotations

import pytest

from dist_train.rundir.attempt_lines import begin_line, count_restarts, read_attempt, restart_line
from dist_train.rundir.failure import Failure

KILLED = Failure(
    "rank", "signal", 3, 1, 1, host="gpu-2", pid=9, exit_code=137, signal=9, message="killed by SIGKILL"
)


def test_a_restart_says_which_rank_why_and_from_which_step() -> None:
    assert restart_line(1, 20, KILLED, "restart 1 of 3") == (
        "attempt 2 goes on from step 20: rank 3 (node 1, local rank 1) on gpu-2, pid 9: killed by SIGKILL "
        "(restart 1 of 3)"
    )


def test_without_a_checkpoint() -> None:
    assert begin_line(2, None) == "attempt 3 begins from the beginning (no checkpoint)"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (begin_line(2, 20), (2, True)),
        (begin_line(2, 20, start=2), (2, True)),
        (restart_line(1, None, KILLED, "restart 1 of 3"), (1, False)),
        ("attempt 2 differs", None),
    ],
)
def test_reading(text: str, found: tuple[int, bool] | None) -> None:
    assert read_attempt(f"[dist-train gpu-2] {text}") == found
    assert read_attempt(text) is None, "a rank's own line"


@pytest.mark.parametrize(
    ("lines", "restarts"),
    [
        ([], 0),
        ([restart_line(1, 20, KILLED, "restart 1 of 3"), restart_line(2, 20, KILLED, "restart 2 of 3")], 2),
        ([begin_line(3, 20)], 0),  # a resume
        ([begin_line(3, 20), restart_line(4, 20, KILLED, "restart 1 of 3")], 1),
        ([begin_line(3, 20, start=3)], 2),
        ([begin_line(3, 20, start=3), restart_line(4, 20, KILLED, "restart 1 of 3")], 3),
    ],
)
def test_restarts_since_the_submission(lines: list[str], restarts: int) -> None:
    printed = [f"[dist-train gpu-2] {line}" for line in lines]
    assert count_restarts(["epoch 1", *printed, "attempt 9 goes on from step 3"]) == restarts
