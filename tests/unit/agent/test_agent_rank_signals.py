"""SIGTERM in a rank, which inherits it blocked: its children, its handlers, its interruption."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from started_rank import begin, output_of

from dist_train import env
from dist_train.rundir.stop_file import SigtermMark, StopFile

HANDLES = """
import os, signal, sys, time

def save(number, frame):
    print("saved", flush=True)
    sys.exit(0)

if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, save)
if sys.argv[1] == "chained":
    before = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: (before(number, frame), save(number, frame)))
print("up", flush=True)
time.sleep(1 if sys.argv[1] == "not-from-the-agent" else 60)
print("finished", flush=True)
"""


@pytest.mark.parametrize(("step_signals", "blocked"), [("0", []), ("1", ["SIGUSR2"])])
def test_neither_a_rank_nor_its_children_have_sigterm_blocked(
    tmp_path: Path, step_signals: str, blocked: list[str]
) -> None:
    script = """
import signal, subprocess, sys

print(sorted(signal.Signals(n).name for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())), flush=True)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, __file__, "child"])
"""
    said = output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: step_signals}))
    assert said == f"{blocked}\n" * 2


@pytest.mark.parametrize(("step_signals", "printed"), [("0", "called\n"), ("1", "blocked\n")])
def test_a_scripts_handler_of_sigusr2_is_called_except_where_the_scheduler_sends_it(
    tmp_path: Path, step_signals: str, printed: str
) -> None:
    script = """
import os, signal

signal.signal(signal.SIGUSR2, lambda number, frame: print("called"))
os.kill(os.getpid(), signal.SIGUSR2)
if signal.SIGUSR2 in signal.sigpending():
    print("blocked")
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: step_signals})) == printed


@pytest.mark.parametrize(
    ("script", "interrupts", "code", "printed"),
    [
        ("own", True, 0, "saved\n"),
        ("chained", True, 0, "saved\n"),
        ("none", True, 130, "KeyboardInterrupt"),
        ("not-from-the-agent", False, 0, "finished\n"),
    ],
)
def test_a_stop_calls_the_handler_of_the_script_and_else_interrupts_it(
    tmp_path: Path, script: str, interrupts: bool, code: int, printed: str
) -> None:
    stop_file = StopFile.create(tmp_path / "board", 1)
    stop_file.interrupts = interrupts
    rank = begin(tmp_path, HANDLES, script, **{env.STOP_FILE: str(tmp_path / "board")})
    try:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "up\n"
        time.sleep(0.1)  # until it sleeps
        rank.send_signal(signal.SIGTERM)
        text = output_of(rank)
    finally:
        rank.kill()
    assert (rank.returncode, text.endswith(printed) or printed in text.splitlines()[-1]) == (code, True), text


@pytest.mark.parametrize(
    ("where", "handler", "step_signals", "code"),
    [
        ("finalizer", "", "0", 130),
        ("finalizer", "lambda number, frame: sys.exit(7)", "0", 7),
        ("finalizer", "lambda number, frame: sys.exit(7)", "1", 7),
        ("fork", "default_int_handler", "0", 130),
    ],
)
def test_a_stop_that_python_drops_is_raised_again(
    tmp_path: Path, where: str, handler: str, step_signals: str, code: int
) -> None:
    # As in a DataLoader's `__del__`, which joins its workers, and in hooks of os.fork().
    script = f"""
import os, signal, sys, time
from signal import default_int_handler

def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.5)

class Batches:
    def __del__(self):
        stop()

if {handler!r}:
    signal.signal(signal.SIGTERM, {handler or None})
if {where!r} == "fork":
    os.register_at_fork(before=stop)
    if os.fork() == 0:
        os._exit(0)
else:
    Batches()
for _ in range(500):
    time.sleep(0.01)
print("went on")
"""
    stop_file = StopFile.create(tmp_path / "stop", 1)
    # A scheduler calls the handler itself; the agent has its signal too.
    stop_file.interrupts, stop_file.stop = step_signals == "0", int(step_signals)
    names = {env.STOP_FILE: str(tmp_path / "stop"), env.STEP_SIGNALS: step_signals}
    rank = begin(tmp_path, script, **names)
    printed = output_of(rank)
    assert (rank.returncode, "went on" in printed, "ignored" in printed) == (code, False, False), printed


def test_a_signal_during_a_fork_interrupts_the_script_after_it(tmp_path: Path) -> None:
    # os.fork() prints and drops what a hook raises, so that an interruption there would be lost.
    script = """
import os, signal, time
from dist_train.agent.workers.signals import rank_signals

rank_signals._before_fork()
os.kill(os.getpid(), signal.SIGTERM)
try:
    rank_signals._in_forking_parent()
except KeyboardInterrupt:
    print("lost in the hook")
for _ in range(500):
    time.sleep(0.01)
print("went on")
"""
    stop_file = StopFile.create(tmp_path / "stop", 1)
    stop_file.interrupts = True
    rank = begin(tmp_path, script, **{env.STOP_FILE: str(tmp_path / "stop")})
    printed = output_of(rank)
    assert rank.returncode == 130, printed
    assert "lost in the hook" not in printed
    assert "went on" not in printed


@pytest.mark.parametrize("start", ["SharedMemory", "spawn", "thread"])
def test_a_rank_that_has_started_a_resource_tracker_outlives_a_schedulers_sigterm(
    tmp_path: Path, start: str
) -> None:
    # On Python 3.11 that start unblocks SIGTERM in its thread (cpython #127586).
    script = f"""
import multiprocessing, os, signal, threading, time
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory

if __name__ == "__main__":
    if {start!r} == "SharedMemory":
        memory = SharedMemory(create=True, size=64)
        memory.close()
        memory.unlink()
    elif {start!r} == "spawn":
        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start()
        process.join()
    else:
        thread = threading.Thread(target=resource_tracker.ensure_running)
        thread.start()
        thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("saved")
"""
    rank = begin(tmp_path, script, **{env.STEP_SIGNALS: "1"})
    printed = output_of(rank)
    assert (rank.returncode, printed.strip()) == (0, "saved"), printed


def test_a_rank_outlives_a_schedulers_sigusr2_also_where_a_library_unblocks_it(tmp_path: Path) -> None:
    script = """
import os, signal

signal.pthread_sigmask(signal.SIG_SETMASK, ())
os.kill(os.getpid(), signal.SIGUSR2)
print("saved")
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: "1"})) == "saved\n"


def test_a_schedulers_sigterm_calls_the_handler_of_the_script(tmp_path: Path) -> None:
    script = """
import os, signal

signal.signal(signal.SIGTERM, lambda number, frame: print("called"))
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert output_of(begin(tmp_path, script, **{env.STEP_SIGNALS: "1"})) == "called\n"


def test_a_second_sigterm_does_not_cut_off_what_an_interrupted_script_still_does(tmp_path: Path) -> None:
    script = """
import os, signal, time

try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except KeyboardInterrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    print("saved")
"""
    stop_file = StopFile.create(tmp_path / "stop", 1)
    stop_file.interrupts = True
    names = {env.STEP_SIGNALS: "1", env.STOP_FILE: str(tmp_path / "stop")}
    assert output_of(begin(tmp_path, script, **names)) == "saved\n"


@pytest.mark.parametrize(
    ("before", "after", "mark"),
    [
        ("pass", "pass", SigtermMark(False, True)),
        ("handle()", "pass", SigtermMark(True, False)),
        ("pass", "handle()", SigtermMark(True, True)),
    ],
)
def test_the_agent_sees_who_has_a_schedulers_sigterm(
    tmp_path: Path, before: str, after: str, mark: SigtermMark
) -> None:
    script = f"""
import os, signal

def handle():
    signal.signal(signal.SIGTERM, lambda number, frame: None)

{before}
os.kill(os.getpid(), signal.SIGTERM)
{after}
"""
    stop_file = StopFile.create(tmp_path / "stop", 2)
    names = {env.STEP_SIGNALS: "1", env.STOP_FILE: str(tmp_path / "stop"), "LOCAL_RANK": "1"}
    assert output_of(begin(tmp_path, script, **names)) == ""
    assert (stop_file.read_sigterm(0), stop_file.read_sigterm(1)) == (SigtermMark(), mark)
