"""A rank that hangs ends itself with its stacks; one that only waits for others has more time."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

HANGS = """
import sys, time
sys.modules["torch"] = None  # the watchdog needs none
from dist_train.resilience.watchdog import HangWatchdog
watchdog = HangWatchdog({timeout_s}, rank=3, device_is_busy={busy})
for step in range(5):
    watchdog.mark(f"step {{step}}")
    time.sleep(0.1)
def forget_to_return():
    time.sleep(30)
{last}
"""


def _run(timeout_s: float, last: str, busy: str = "None") -> tuple[int, str, float]:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGS.format(timeout_s=timeout_s, last=last, busy=busy)],
        capture_output=True,
        text=True,
        timeout=25,
        check=False,
    )
    return done.returncode, done.stderr, time.monotonic() - began


def test_no_progress_ends_the_process_and_names_the_place() -> None:
    code, text, seconds = _run(0.4, "forget_to_return()")
    assert code == -6
    assert "rank 3 has made no progress for" in text
    assert "since step 4" in text
    assert "in forget_to_return" in text
    assert seconds < 10


def test_a_forward_pass_that_waits_for_buffers_is_named() -> None:
    code, text, _ = _run(0.4, "def _sync_buffers():\n    time.sleep(30)\n_sync_buffers()")
    assert code == -6
    assert (
        "since step 4, in DDP's exchange of buffers (BatchNorm's), which another rank has not begun" in text
    )
    assert "dt.loader(…, evaluation=True)" in text


def test_a_closed_watchdog_does_nothing() -> None:
    code, text, _ = _run(0.4, "watchdog.close(); time.sleep(0.8)")
    assert (code, text) == (0, "")


def test_a_rank_that_waits_for_others_is_not_the_first_to_end() -> None:
    waits = "exec(compile('time.sleep(1.3)', '/x/torch/distributed/distributed_c10d.py', 'exec'))"
    code, text, _ = _run(1.0, waits)
    assert (code, text) == (0, "")


def test_a_rank_that_waits_for_its_device_is_not_the_first_to_end() -> None:
    """In `.item()` the top frame is the user's own: the device is in a collective, which waits for others."""
    code, text, _ = _run(1.0, "time.sleep(1.3)", busy="lambda: True")
    assert (code, text) == (0, "")


def test_a_device_that_does_not_answer_waits_as_the_main_thread_does() -> None:
    slow = "lambda: time.sleep(60)"
    code, text, _ = _run(1.0, "import dist_train.resilience.watchdog as w; time.sleep(1.3)", busy=slow)
    assert (code, text) == (0, "")


@pytest.mark.parametrize("busy", ["lambda: False", "lambda: 1 / 0"], ids=["idle", "broken"])
def test_a_rank_that_hangs_beside_an_idle_device_ends_first(busy: str) -> None:
    code, text, _ = _run(0.4, "forget_to_return()", busy=busy)
    assert code == -6
    assert "in forget_to_return" in text


def test_waiting_for_ever_ends_too() -> None:
    code, _, _ = _run(0.4, "forget_to_return()", busy="lambda: True")
    assert code == -6
