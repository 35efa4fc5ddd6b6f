"""Ranks of a failed group are killed as soon as their stacks are printed, and not before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from test_agent_ranks_printing import Scene

from dist_train.agent import timeouts

# Its stacks are long: many threads, each deep in calls.
DEEP = """
import threading
def call(depth):
    call(depth - 1) if depth else time.sleep(60)
for _ in range(60):
    threading.Thread(target=call, args=(80,), daemon=True).start()
print("ready", flush=True)
call(3)
"""
BLOCKED = """
import signal
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(60)
"""


def killed(folder: Path, *scripts: str) -> tuple[Scene, float]:
    """The ranks after the kill, and how many seconds that took."""
    scene = Scene(folder, *scripts)
    try:
        assert scene.wait(lambda: all(b"ready" in scene.log(number) for number in range(len(scripts))))
    finally:
        began = time.monotonic()
        scene.workers.kill(dump_stacks=True)
        took = time.monotonic() - began
    assert scene.workers.all_ended
    return scene, took


def test_stacks_are_waited_for_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "STACK_DUMP_S", 4 * 20.0)
    scene, took = killed(tmp_path, DEEP, DEEP)
    assert took < 10.0
    for number in range(2):
        text = scene.log(number).decode()
        # The main thread, the oldest, is printed last, and its last frame is the interpreter's first.
        assert text.count("most recent call first") >= 61
        assert text.rstrip().endswith("in _run_module_as_main"), text[-200:]


def test_a_rank_that_prints_no_stacks_is_killed_after_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "STACK_DUMP_S", 4 * 1.5)
    _, took = killed(tmp_path, BLOCKED)
    assert took >= 1.5


REPORTING = """
import sys
def hook(*_):
    print("ready", flush=True)
    time.sleep(1.0)
    print("reported", flush=True)
sys.excepthook = hook
raise ValueError
"""


def test_a_rank_that_is_reporting_its_own_error_ends_that_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "STACK_DUMP_S", 4 * 20.0)
    scene, took = killed(tmp_path, REPORTING)
    assert b"reported" in scene.log(0)
    assert took < 10.0
